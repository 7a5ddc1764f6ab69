"""Names that tables and figures show."""

from pfl_core.study.names import in_figure, plain


def test_symbols_are_written_as_such_and_not_inside_of_words():
    assert in_figure("η_g = 0.5") == r"$η_{\mathrm{g}}$ = 0.5"
    assert in_figure("warmup_cost") == "warmup_cost"
    assert (
        plain("CIFAR-10, augment=crop_flip") == "CIFAR-10, crops and flips" == in_figure("cifar10, augment=crop_flip")
    )
