"""Clients of one run at the same time: results, order, failures, and the end of the threads."""

import gc
import threading
import time

import pytest
import torch

from pfl_core import LocalTraining
from pfl_core.federation.threads import ClientThreads, StoppedError
from tests.helpers import cnn, everyone, federation, same_bits

IMAGES = {"shape": (1, 4, 4)}


def conv_fed(threads, **options):
    return federation(cnn(), threads=threads, **IMAGES, **options)


def test_results_come_in_the_order_of_the_items_and_large_items_start_first():
    threads, started = ClientThreads([0, 1]), []

    def slow(item):
        started.append(item)
        time.sleep(0.02)
        return 10 * item

    assert threads.map(slow, [1, 2, 3, 4], sizes=[1, 2, 8, 9]) == [10, 20, 30, 40]
    assert set(started[:2]) == {3, 4}


def test_threads_work_at_the_same_time_each_with_an_element_of_its_own():
    threads, meeting = ClientThreads(["a", "b", "c"]), threading.Barrier(3, timeout=30)

    def meet(item):
        meeting.wait()  # fails unless all three are here
        return threads.own

    assert sorted(threads.map(meet, range(3))) == ["a", "b", "c"]
    assert threads.own == "a"


def test_calls_inside_a_call_run_one_after_the_other_in_the_same_thread():
    threads = ClientThreads([0, 1])
    inner = threads.map(lambda _: threads.map(lambda _: threading.get_ident(), range(3)), range(2))
    assert all(len(set(idents)) == 1 for idents in inner)


def test_gradients_are_off_in_all_threads_if_they_are_off_in_the_caller():
    threads = ClientThreads([0, 1])
    with torch.no_grad():
        assert threads.map(lambda _: torch.is_grad_enabled(), range(4)) == [False] * 4
    assert threads.map(lambda _: torch.is_grad_enabled(), range(4)) == [True] * 4


def test_a_failing_client_ends_the_call_with_its_own_exception_and_the_next_call_works():
    threads, started = ClientThreads([0, 1]), []

    def fails(item):
        started.append(item)
        if item == 0:
            raise KeyError("client 0")
        while True:  # until it notices
            threads.check()
            time.sleep(0.001)

    with pytest.raises(KeyError, match="client 0"):
        threads.map(fails, range(50))
    assert len(started) <= 2
    threads.check()
    assert threads.map(abs, [-1, -2]) == [1, 2]


def test_an_interrupt_of_the_caller_ends_the_other_threads():
    threads, ended = ClientThreads([0, 1]), []

    def work(item):
        if threads.own == 0:
            raise KeyboardInterrupt
        try:
            while True:
                threads.check()
                time.sleep(0.001)
        except StoppedError:
            ended.append(item)
            raise

    with pytest.raises(KeyboardInterrupt):
        threads.map(work, range(2))
    assert len(ended) <= 1
    assert not threads._failed


def test_an_interrupt_while_the_threads_are_started_ends_those_that_run(monkeypatch):
    threads, running, ended = ClientThreads([0, 1, 2]), [], []
    submit = threads._pool.submit

    def interrupted(work):
        if running:
            raise KeyboardInterrupt
        submitted = submit(work)
        while not running:
            time.sleep(0.001)
        return submitted

    def work(item):
        running.append(item)
        try:
            for _ in range(500):
                threads.check()
                time.sleep(0.01)
        finally:
            ended.append(item)

    monkeypatch.setattr(threads._pool, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads.map(work, range(4))
    monkeypatch.undo()
    assert len(running) == 1 and ended == running
    assert threads.map(abs, [-1, -2, -3]) == [1, 2, 3]


def test_threads_end_with_their_federation():
    fed = conv_fed(4)
    fed.sgd(fed.broadcast(fed.theta0, everyone(fed)), everyone(fed), key=0)
    started = list(fed.threads._pool._threads)
    assert started
    del fed
    gc.collect()
    for thread in started:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("masked", [False, True])
def test_sgd_with_hooks_masks_and_momentum_has_the_same_bits_with_any_number_of_threads(masked):
    def trained(threads):
        fed = conv_fed(threads, momentum=0.9, weight_decay=0.01, epochs=3)
        clients = torch.tensor([2, 0, 3, 1, 0])
        theta = fed.broadcast(fed.theta0, clients)
        mask = torch.rand(5, fed.num_params, generator=torch.Generator().manual_seed(0)) < 0.5
        training = LocalTraining(
            trainable=mask if masked else None, gradient=lambda g, theta_k, s: g + 0.1 * (s + 1) * theta_k
        )
        out = fed.sgd(theta, clients, training, key=0, velocity=torch.zeros(5, fed.num_params))
        scores = fed.evaluate(out.theta, clients)
        features = fed.forward(out.theta, clients, layer="features")
        return out, scores, features

    one = trained(1)
    for threads in (2, 5, 8):
        other = trained(threads)
        assert all(same_bits(a, b) for a, b in zip(one, other, strict=True)), threads


def test_networks_that_train_in_one_computation_use_one_thread():
    assert federation(stacked=True, threads=4).threads.num == 1
    assert federation(stacked=False, threads=4).threads.num == 4
