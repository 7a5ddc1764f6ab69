"""Names that tables and figures show."""

from pfl_core.study.names import in_figure, in_words, plain


def test_symbols_are_written_as_such_and_not_inside_of_words():
    assert in_figure("η_g = 0.5") == r"$η_{\mathrm{g}}$ = 0.5"
    assert in_figure("warmup_cost") == "warmup_cost"
    assert (
        plain("CIFAR-10, augment=crop_flip") == "CIFAR-10, crops and flips" == in_figure("cifar10, augment=crop_flip")
    )


def test_a_copy_of_a_data_set_is_named_once():
    assert (
        in_words("cifar10 (CIFAR-10 (JPEG copy))")
        == "CIFAR-10 (JPEG copy)"
        == in_words("cifar10: CIFAR-10 (JPEG copy)")
    )
    assert in_words("cifar10_c (CIFAR-10 (JPEG copy))") == "CIFAR-10-C (CIFAR-10 (JPEG copy))"
