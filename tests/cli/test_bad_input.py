"""Bad input is one line on stderr with status 2, and nothing is computed or written."""

import pytest

from pfl_core.cli import main
from pfl_core.cli.specs import MAX_RUNS

pytestmark = pytest.mark.usefixtures("folders")
NINES = 5000 * "9"
BAD = [  # command line -> what the line must contain: the value, what was expected or what to do
    ("", "required: COMMAND (see pfl --help)"),
    ("figurs", "'figurs'"),
    ("run", "METHOD (see pfl run --help)"),
    ("run fedselectt", "unknown method 'fedselectt' (did you mean 'fedselect'?); `pfl methods` lists all"),
    ("run no_such_module:Thing", "'no_such_module:Thing'"),
    ("run json:loads", "not a subclass of pfl_core.Algorithm"),
    ("run ./mine:HalfStep", "./mine"),
    ("run " + 5000 * "x", "... (--debug shows all)"),
    ("run fedselect --alpha 0.5", "give a field of the method as --set alpha=0.5, an option of the data, partition"),
    ("run fedselect --min-size=5", "--set partition.min_size=5"),
    ("run fedselect --batchsize 8", "did you mean 'batch-size'?"),
    ("compare fedselect ditto --lam 1", "--set lam=1"),
    ("figures fedselect --sed", "unrecognized arguments: --sed (see pfl figures --help)"),
    ("run fedselect --data digitz", "digits"),
    ("run fedselect --data cifar100", "'cifar100' is not here"),
    ("run fedselect --model resnet", "resnet18"),
    ("run fedselect --partition shard:2", "'shard' (did you mean 'shards'?)"),
    ("run fedselect --partition no_such_module:rule", "cannot be imported"),
    ("run fedselect --partition iid:3", "takes no value"),
    ("run fedselect --partition shards:11", "1..10"),
    ("run fedselect --partition shards:two", "classes_per_client='two'"),
    ("run fedselect --partition dirichlet:0", "alpha=0"),
    ("run fedselect --reading theirs", "authors_code"),
    ("run fedselect --device meta", "'meta'"),
    ("run fedselect --device tpu9", "give cpu, cuda"),
    ("run fedselect --paper fedselct", "did you mean 'fedselect'"),
    ("run fedselect --preset quick", "--preset quick is the size of a paper's experiment; add --paper"),
    ("run fedselect --paper fedselect --preset huge", "quick"),
    ("run local --paper across --preset paper", "across has no preset 'paper'; choose from real, quick, ci"),
    ("run fedmd --paper pfedgate", "no split 'public'"),
    # values of flags
    (f"run fedavg --seed {NINES}", "18 digits"),
    (f"run fedavg --clients {NINES}", "18 digits"),
    ("run fedavg --clients 10000000000", "1797 samples"),
    ("run fedselect --clients 0", "at least 1"),
    ("run fedselect --rounds many", "not an integer"),
    ("run fedselect --rounds 0", "'0' is not an integer of at least 1"),
    ("run fedselect --lr fast", "'fast' is not a number"),
    ("run fedselect --lr 0.1 --set train.lr=0.2", "lr is given twice"),
    ("run fedselect --lr -1", "greater than or equal to 0"),
    ("run fedselect --lr inf", "finite"),
    ("run fedselect --lr 0.1,", "empty value"),
    ("run fedselect --lr 0.1,fast", "'fast'"),
    ("run fedselect --clip-norm -1", "clip_norm=-1"),
    ("run fedselect --milestones half", "milestones='half'"),
    ("run fedselect --augment flip", "crop_flip"),
    ("run fedselect --sampling twice", "should be 'each_round' or 'once'"),
    ("run fedselect --participation 10", "for 10 percent give 0.1"),
    ("run fedavg --seed 2-0", "give e.g. 0-2"),
    (f"run fedavg --seed 0-{MAX_RUNS - 1} --lr 0.1,0.2", f"{2 * MAX_RUNS} runs; give at most {MAX_RUNS}"),
    ("run local --stop-after=2", "is not a duration above 0; give e.g. 2h, 90m or 45s"),
    ("search fedselect --stop-after=0h", "is not a duration above 0"),
    ("figures fedselect --stop-after=2d", "is not a duration above 0"),
    # --set
    (f"run fedavg --set x={NINES}", "too large"),
    ("run fedavg --set x=" + 100_000 * "[", "nested too deeply"),
    ("run fedselect --set alfa=0.3", "did you mean 'alpha'"),
    ("run fedselect --set alpha=30", "for 30 percent give 0.3"),
    ("run fedselect --set alpha=much", "alpha='much'"),
    ("run fedselect --set alpha=NaN", "NaN is not a finite number"),
    ("run fedselect --set alpha", "FIELD=VALUE"),
    ("run fedselect --set method.alpha=1", "FIELD=VALUE"),
    ("run fedselect --set rule.alpha=1", "rule is not a method of this command; choose from data, partition, model"),
    ("run fedselect --set fedselct.alpha=1", "fedselct is not a method of this command (did you mean 'fedselect'?)"),
    ("compare fedavg tests.own:Mine --set Mine.x=1", "command (did you mean tests.own:Mine.x?)"),
    ("run fedselect --set name=fedavg", "choose the name with METHOD"),
    ("run fedselect --set data.size=3", "'size'"),
    ("run fedselect --set model.width=3", "'width'"),
    ("run fedselect --set partition.alpha=3", "'alpha'"),
    ("run fedselect --set train.speed=3", "'speed'"),
    ("run fedselect --set lr_personal=-1", "greater than or equal to 0"),
    ("run fedselect --set run.method=fedavg", "'method'"),
    ("run fedavg_ft --set finetune_epochs=-1", "finetune_epochs=-1"),
    ("run fedavg --set ditto.lam=1", "ditto is not a method of this command; choose from"),
    # stopped runs, models, logs
    ("run fedselect --set run.device=tpu", "'tpu' is not a device"),
    ("run fedselect --set run.eval_every=3 --until 2", "the first evaluation is after 3 rounds"),
    ("run local --save-models file", "file is a file; give a folder for the models"),
    ("run fedavg --log file/logs", "cannot be written"),
    ("run local --clients 2000 --partition iid --model mlp", "client"),
    # compare
    ("compare fedselct", "unknown paper 'fedselct' (did you mean 'fedselect'?)"),
    ("compare ditto", "'ditto' is a method and no paper"),
    ("compare fedselect dito", "unknown method 'dito' (did you mean 'ditto'?)"),
    ("compare fedselect --seed 1", "cannot compare fedselect"),
    ("compare --seed 1", "cannot compare no method"),
    ("compare ditto ditto", "different methods"),
    ("compare fedavg ditto --figure x.svg", ".pdf or .png"),
    ("compare fedavg ditto --set lam=1", "fedavg has no such setting; give --set ditto.lam=VALUE"),
    ("compare fedavg local --set lam=1", "method fedavg: no setting 'lam'"),
    ("compare fedavg local --set fedavg.lr=fast", "training: lr='fast'"),
    ("compare fedavg local --set fedavg.rate=1", "method fedavg: no setting 'rate'"),
    ("compare fedselect --json --latex", "not allowed with"),
    # stored runs
    ("runs list --stale", "--stale"),
    ("runs list --newest 0", "at least 1"),
    ("runs list --paper fedselct", "did you mean 'fedselect'"),
    ("runs list --preset huge", "quick"),
    ("runs export", "give the folder"),
    ("runs export --results", "select the runs by key, --paper"),
    ("runs export --models out", "select the runs by key, --paper"),
    ("runs export --models out --results x", "not allowed with"),
    ("runs export --models out 0123456789abcdef", "no stored run has the key '0123456789abcdef'; `pfl runs list"),
    ("runs export out 0123", "'0123'"),
    ("runs export out", "no stored run matches, nothing to write; --all also takes the committed ones"),
    ("runs export file", "file is a file"),
    ("runs clean --all --stale", "not allowed with"),
    # other commands
    ("data digitz", "digits"),
    ("methods fedselectt", "did you mean 'fedselect'"),
    ("report fedselct", "did you mean 'fedselect'"),
    ("search fedselect fedselct", "'fedselct' (did you mean 'fedselect'?); `pfl search fedselect --list`"),
    ("search fedselect fedavg fedselct --list", "did you mean 'fedselect'?"),
    ("search fedselect --setting moon", "preset and setting"),
    ("search fedselect --json", "--list"),
    ("figures fedselct", "did you mean 'fedselect'"),
    ("figures fedselect/0", "fedselect/06_workshop_gradltn, fedselect/07_paper_vs_code; give more of the name"),
    ("figures --preset huge", "quick"),
    ("figures --json", "--list"),
    ("figures --jobs 0", "at least 1"),
    ("figures -p PRESET huge", "quick"),
    ("figures -p SEEDS some", "SEEDS = 'some': give seeds such as 0, [0, 1, 2]"),
    ("figures -p TRAIN false", "`pfl figures` trains what is missing"),
    ("figures -p SEED 3", "no parameter 'SEED' (did you mean 'SEEDS'?)"),
    ("figures -p OVERRIDES 3", "OVERRIDES = 3: give fields and values"),
    ('figures -p OVERRIDES {"device":"tpu9"}', "'tpu9' is not a device"),
    ('figures fedselect/02_personalization_limit -p OVERRIDES {"round":3}', "'round' (did you mean 'rounds'?)"),
    ("figures fedselect/02_personalization_limit -p ROUNDS 3", "OVERRIDES"),
    ("figures across --preset paper", "across has no preset 'paper'; choose from real, quick, ci"),
    ("figures --write-notebooks --preset paper", "from the evidence"),
    ("figures --evidence --preset real", "takes preset and seeds from the manifest"),
    ("figures --evidence -p SEEDS [0]", "takes preset and seeds from the manifest"),
    ("figures --evidence --device cpu", "takes preset and seeds from the manifest"),
    ("figures --evidence --write-notebooks", "takes preset and seeds from the manifest"),
]


@pytest.mark.parametrize(("command", "words"), BAD, ids=lambda text: text[:60] or "nothing")
def test_bad_input_gives_one_line_and_status_2(command, words, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith("pfl: ") and err.count("\n") == 1 and err.endswith("\n") and len(err) <= 601
    assert words in err and "Traceback" not in out + err
    assert [path.name for path in tmp_path.glob("**/*") if path.is_file()] == ["file"], "something was written"


@pytest.mark.parametrize(
    "command", ["report", "report fedselect", "runs manifest", "runs export --results --paper fedselect"]
)
def test_what_writes_into_the_repository_is_refused_outside_of_it(tmp_path, monkeypatch, capsys, command):
    """As after the installation of a wheel."""
    monkeypatch.setattr("pfl_core.notebooks.catalogue.NOTEBOOKS", tmp_path)
    assert main(command.split()) == 2
    assert "work in a checkout of the repository" in capsys.readouterr().err
