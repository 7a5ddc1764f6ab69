"""Mini-ImageNet and Office-Home from folders of small pictures."""

import numpy as np
import pytest
import torch
from PIL import Image

from pfl_core.data import load
from pfl_core.data.folders import read_picture

from .conftest import some_images


def picture(path, height, width, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    array = some_images(height, width, 3) if mode == "RGB" else some_images(height, width)
    Image.fromarray(array).save(path)
    return array


def test_mini_imagenet(folder):
    for name in ("n02", "n01"):
        for i in range(6):
            picture(folder / "mini_imagenet" / name / f"{i}.JPG", 84, 84)
    (folder / "mini_imagenet" / "n01" / "notes.txt").write_text("no picture", encoding="utf-8")
    data = load("mini_imagenet", test_per_class=2)
    assert data.x.shape == (12, 3, 84, 84) and data.class_names == ("n01", "n02")
    assert data.y.bincount().tolist() == [6, 6]
    assert data.y[data.is_test].bincount().tolist() == [2, 2]
    again, other = (load("mini_imagenet", test_per_class=2, seed=seed).is_test for seed in (0, 1))
    assert torch.equal(again, data.is_test) and not torch.equal(other, data.is_test)
    with pytest.raises(ValueError, match="test_per_class=100 is outside 1..5"):
        load("mini_imagenet")


def test_office_home_has_a_source_for_each_domain(folder):
    for domain, count in (("Real World", 5), ("Art", 3), ("Clipart", 4)):
        for name in ("Alarm_Clock", "Backpack"):
            for i in range(count):
                picture(folder / "office_home" / domain / name / f"{i:05}.png", 8, 8)
    (folder / "office_home" / ".hidden").mkdir()
    data = load("office_home", resize=4)
    assert data.x.shape == (24, 3, 4, 4) and data.class_names == ("Alarm_Clock", "Backpack")
    assert data.source.bincount().tolist() == [6, 8, 10]  # Art, Clipart, Real World
    tests = [data.y[data.is_test & (data.source == k)].bincount().tolist() for k in range(3)]
    assert tests == [[1, 1], [2, 2], [2, 2]]  # half of each class of each domain, rounded down
    assert int(load("office_home", resize=4, test_share=0.4).is_test.sum()) == 2 * (1 + 1 + 2)
    with pytest.raises(ValueError, match="test_share=1: input should be less than 1"):
        load("office_home", test_share=1)


def test_images_are_cropped_at_the_centre(tmp_path):
    array = picture(tmp_path / "wide.png", 6, 10)
    assert torch.equal(read_picture(tmp_path / "wide.png", 6, 4).permute(1, 2, 0), torch.from_numpy(array[1:5, 3:7]))


def test_short_side_and_grey(tmp_path):
    picture(tmp_path / "tall.png", 40, 20, mode="L")
    x = read_picture(tmp_path / "tall.png", 10, 10)
    assert x.shape == (3, 10, 10) and torch.equal(x[0], x[2])
    with Image.open(tmp_path / "tall.png") as image:
        small = np.asarray(image.resize((10, 20), Image.Resampling.BILINEAR))
    assert torch.equal(x[1], torch.from_numpy(small[5:15].copy()))


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n"])
def test_a_damaged_image_is_named(folder, content):
    path = folder / "mini_imagenet" / "n01" / "bad.png"
    picture(path, 8, 8)
    path.write_bytes(content or path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"bad\.png is damaged or not an image"):
        load("mini_imagenet")


def test_a_folder_without_images(folder):
    (folder / "mini_imagenet" / "n01").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="add its files, see data/README.md"):
        load("mini_imagenet")
    (folder / "mini_imagenet" / "n01" / "a.txt").write_text("no picture", encoding="utf-8")
    with pytest.raises(ValueError, match="mini_imagenet: no .* images in class folders"):
        load("mini_imagenet")


def test_a_file_with_test_images_keeps_its_own_split(write_npz):
    write_npz("mini_imagenet", train=300, test=4, shape=(4, 4, 3))
    assert int(load("mini_imagenet").is_test.sum()) == 4
    write_npz("mini_imagenet", train=300, test=0, shape=(4, 4, 3))
    assert int(load("mini_imagenet").is_test.sum()) == 200
