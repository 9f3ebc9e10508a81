"""Finding data by name: a folder, the bundled sets, and OpenML with its cache (no test downloads)."""

from __future__ import annotations

import gzip
from types import SimpleNamespace

import numpy as np
import pytest
from problems import raw_parts

from gpflow_ext import datasets
from gpflow_ext.data.datasets import load, openml
from gpflow_ext.data.datasets.catalogue import KNOWN, OpenML


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch, tmp_path):
    for name in ("GPFLOW_EXT_DATA", "GPFLOW_EXT_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPFLOW_EXT_CACHE", str(tmp_path / "cache"))


def test_unknown_name_lists_what_is_known_and_close():
    with pytest.raises(ValueError, match=r"(?s)Did you mean 'ionosphere'.*Known names: .*wine"):
        load("ionospher")
    with pytest.raises(ValueError, match=r"scotland_lip.csv.gz.*set GPFLOW_EXT_DATA"):
        load("scotland_lip")
    with pytest.raises(ValueError, match=r"data_dir is 'nowhere', which is not a folder"):
        load("sonar", data_dir="nowhere")
    assert {"mnist", "iris", "ionosphere"} <= set(datasets.known_names())


@pytest.mark.parametrize(
    ("name", "shape", "task", "labels"),
    [
        ("breast_cancer", (569, 30), "binary", ("malignant", "benign")),
        ("wine", (178, 13), "multiclass", ("class_0", "class_1", "class_2")),
        ("diabetes", (442, 10), "regression", None),
        ("linnerud", (20, 3), "regression", None),
    ],
)
def test_bundled_sets(name, shape, task, labels):
    pytest.importorskip("sklearn")
    split = load(name)
    assert np.concatenate([X for X, _ in split]).shape == shape
    assert (split.task, split.labels) == (task, labels)
    assert split.train[1].shape[1] == (3 if name == "linnerud" else 1)
    assert "scikit-learn" in split.source
    if name == "linnerud":
        one = load(name, target="Waist", drop=["Jumps"])
        np.testing.assert_array_equal(one.train[1], split.train[1][:, 1:2])
        assert one.feature_names == ("Chins", "Situps")


def test_folder_keeps_labels_and_offsets_out_of_the_inputs(write, monkeypatch, tmp_path):
    rows = "".join(f"{n},{n % 4},{n + 0.5},{n * n % 7},5{n},{n}\n" for n in range(1, 11))
    write("district,observed,expected,pct_aff,lat,lon_west\n" + rows, "folder/scotland_lip.csv.gz")
    monkeypatch.setenv("GPFLOW_EXT_DATA", str(tmp_path / "folder"))
    split = load("scotland_lip")
    assert (split.feature_names, split.target) == (("pct_aff", "lat", "lon_west"), "observed")
    assert (split.task, split.name) == ("count", "scotland_lip")
    for exposure, rows_ in zip(split.exposure, split.rows, strict=True):
        np.testing.assert_array_equal(exposure[:, 0], rows_ + 1.5)
    write(
        "myct,prp,y5_freq,y10_freq\n" + "".join(f"{n},{n**2},{n // 4},{n // 2}\n" for n in range(20)),
        "machine_cpu.csv",
    )
    cpu = load("machine_cpu", target="y5_freq", data_dir=tmp_path)
    assert (cpu.feature_names, cpu.task, cpu.labels) == (("myct",), "ordinal", tuple("01234"))
    assert load("machine_cpu", data_dir=tmp_path).task == "regression"


def test_published_parts(write, tmp_path):
    write("0.1,2,-1\n0.2,3,1\n0.3,4,1\n", "splits/ionosphere.data-tra.csv")
    write("0.4,5,-1\n", "splits/ionosphere.data-tst.csv")
    split = load("ionosphere", split="published", data_dir=tmp_path, standardise=False)
    np.testing.assert_array_equal(split.train[0], [[0.1, 2], [0.2, 3], [0.3, 4]])
    np.testing.assert_array_equal(split.train[1], [[0], [1], [1]])
    np.testing.assert_array_equal(split.test[0], [[0.4, 5]])
    assert split.labels == ("good", "bad")  # the published files count the bad returns as positive
    with pytest.raises(ValueError, match=r"splits/; set GPFLOW_EXT_DATA"):
        load("ionosphere", split="published")
    write("x01,y,test0\n" + "".join(f"{n},{n % 3},{int(n > 6)}\n" for n in range(10)), "pyrim_ord10.csv")
    pyrim = load("pyrim_ord10", split="published", data_dir=tmp_path)
    np.testing.assert_array_equal(pyrim.rows[1], [7, 8, 9])
    assert pyrim.feature_names == ("x01",)


def test_arrays_in_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (12, 2, 3)).astype(np.uint8)
    digits = np.arange(12) % 10
    np.savez(
        tmp_path / "mnist.npz",
        X_train=pixels[:9], y_train=digits[:9], X_test=pixels[9:], y_test=digits[9:],
    )  # fmt: skip
    split = load("mnist", data_dir=tmp_path, standardise=False)
    np.testing.assert_array_equal(split.train[0], pixels[:9].reshape(9, 6) / 255.0)
    np.testing.assert_array_equal(split.test[1][:, 0], [9, 0, 1])
    assert len(split.labels) == 10
    parity = load("mnist_odd_even", data_dir=tmp_path)
    np.testing.assert_array_equal(parity.test[1][:, 0], [1, 0, 1])
    assert (parity.task, parity.labels) == ("binary", ("even", "odd"))
    shuffled = load("mnist", data_dir=tmp_path, split="random", test_fraction=0.5)
    np.testing.assert_array_equal(np.sort(shuffled.test[1][:, 0]), [0, 1])  # the digits that occur twice
    np.savez(tmp_path / "kin40k.npz", X=rng.normal(size=(6, 2)), y=np.arange(6.0), fold=np.arange(6) % 2)
    np.testing.assert_array_equal(load("kin40k", data_dir=tmp_path, split="published").rows[1], [0, 2, 4])
    for arrays, message in (
        ({"X": pixels}, r"holds the arrays X; it needs 'y' too"),
        ({"X_train": pixels, "y_train": digits, "X_test": pixels}, r"it needs 'y_test' too"),
        ({"X": pixels, "y": digits[:6]}, r"X has 12 rows and y 6"),
    ):
        np.savez(tmp_path / "mnist.npz", **arrays)
        with pytest.raises(ValueError, match=message):
            load("mnist", data_dir=tmp_path)


def _idx(array, kind=8):
    """Return an array of bytes as the content of an IDX file."""
    head = bytes([0, 0, kind, array.ndim])
    return head + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


@pytest.fixture
def clothes(tmp_path):
    """Return images and labels of both parts, written as IDX files of which two are compressed."""
    folder = tmp_path / "fashion_mnist"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (300, 2, 3)).astype(np.uint8)
    labels = (np.arange(300) * 7 % 10).astype(np.uint8)
    for part, rows in (("train", slice(260)), ("t10k", slice(260, None))):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(_idx(pixels[rows]))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(_idx(labels[rows])))
    return pixels, labels


def test_idx_files_in_a_folder(clothes, tmp_path):
    pixels, labels = clothes
    split = load("fashion_mnist", data_dir=tmp_path, standardise=False)
    for (X, Y), rows in zip(split, (slice(260), slice(260, None)), strict=True):
        np.testing.assert_array_equal(X, pixels[rows].reshape(-1, 6) / 255.0)
        np.testing.assert_array_equal(Y[:, 0], labels[rows])
    assert (split.name, split.task, split.labels[9]) == ("fashion_mnist", "multiclass", "Ankle boot")
    (tmp_path / "fashion_mnist").rename(tmp_path / "mnist")
    parity = load("mnist_odd_even", data_dir=tmp_path)
    np.testing.assert_array_equal(parity.test[1][:, 0], labels[260:] % 2)
    assert parity.sha256 == split.sha256


def test_idx_files_that_cannot_be_read_are_named(clothes, tmp_path):
    names = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
    with pytest.raises(ValueError, match=rf"from a folder fashion_mnist with {names}.*set GPFLOW_EXT_DATA"):
        load("fashion_mnist")
    folder, labels = tmp_path / "fashion_mnist", np.zeros(260, np.uint8)
    for content, message in (
        (_idx(labels)[:-1], r"labels-idx1-ubyte holds 259 bytes after its head, which says \[260\]"),
        (_idx(labels, kind=13), "labels-idx1-ubyte is not an IDX file of unsigned bytes"),
        (b"\0\0\x08\x03\0", "labels-idx1-ubyte is not an IDX file of unsigned bytes"),
        (b"", "labels-idx1-ubyte is not an IDX file of unsigned bytes"),
    ):
        (folder / "train-labels-idx1-ubyte").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load("fashion_mnist", data_dir=tmp_path)
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte.gz"):
        (folder / f"t10k-{kind}").unlink()
    with pytest.raises(
        ValueError, match="fashion_mnist lacks t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte;"
    ):
        load("fashion_mnist", data_dir=tmp_path)


def test_event_times_become_counts_in_bins(write, tmp_path):
    dates = np.array([1851.0, 1851.2, 1900.5, 1951.0])
    write("date\n" + "\n".join(map(str, dates)), "coal_disasters.csv")
    split = load("coal_disasters", data_dir=tmp_path, standardise=False)
    X, Y = raw_parts(split)
    assert (split.task, Y.sum(), len(X)) == ("count", 4, 100)
    np.testing.assert_allclose(X[:, 0], 1851.5 + np.arange(100), rtol=1e-12)
    np.testing.assert_array_equal(np.flatnonzero(Y), [0, 49, 99])
    np.testing.assert_allclose(np.concatenate(split.exposure), 1.0, rtol=1e-12)


@pytest.fixture
def pinned(monkeypatch):
    """A pinned set of four rows, and a list that counts the downloads."""
    X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0], [7.0, 8.0]])
    table = openml.Parsed(X, np.array(["Rock", "Mine", "Rock", "Mine"]), ("u", "v"))
    pin = OpenML(40, 1, (4, 2), classes=("Rock", "Mine"))
    known = KNOWN["sonar"]
    monkeypatch.setitem(KNOWN, "sonar", type(known)(known.targets, known.licence, known.labels, openml=pin))
    downloads: list[OpenML] = []
    monkeypatch.setattr(openml, "download", lambda pin: downloads.append(pin) or table)
    return downloads


def test_openml_is_cached_and_verified(pinned, tmp_path):
    split = load("sonar", test_fraction=0.5)
    X, Y = raw_parts(split)
    np.testing.assert_allclose(X, [[1, 2], [3, 4], [5, 7], [7, 8]], rtol=1e-14)
    np.testing.assert_array_equal(
        Y[:, 0], [0, 1, 0, 1]
    )  # classes in the order of the set, not of the alphabet
    assert (split.labels, split.feature_names) == (("rock", "mine"), ("u", "v"))
    again = load("sonar", test_fraction=0.5, offline=True)
    assert len(pinned) == 1
    assert again.sha256 == split.sha256
    np.testing.assert_array_equal(again.train[0], split.train[0])

    cached = next((tmp_path / "cache").glob("*.npz"))
    np.savez(cached, X=X + 1.0, y=np.array(["Rock", "Mine", "Rock", "Mine"]), names=np.array(["u", "v"]))
    with pytest.raises(
        ValueError, match=rf"expected sha256 {split.sha256}, found [0-9a-f]{{64}}; .*delete it"
    ):
        load("sonar")
    cached.write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(ValueError, match=r"cannot be read .*delete it"):
        load("sonar")


def test_openml_refuses_another_table(pinned, monkeypatch):
    known = KNOWN["sonar"]
    for pin, message in (
        (
            OpenML(40, 1, (4, 2), ("Rock", "Mine"), sha256="0" * 64),
            r"expected sha256 0{64}, found [0-9a-f]{64}",
        ),
        (OpenML(40, 1, (208, 60), ("Rock", "Mine")), r"shape \(4, 2\) where \(208, 60\)"),
        (OpenML(40, 1, (4, 2), ("Rock", "Sand")), r"labels Mine besides Rock, Sand"),
    ):
        monkeypatch.setitem(KNOWN, "sonar", type(known)(known.targets, known.licence, openml=pin))
        with pytest.raises(ValueError, match=message):
            load("sonar")


def test_openml_without_a_network_says_what_to_do(pinned, monkeypatch):
    with pytest.raises(ValueError, match=r"offline is set; set GPFLOW_EXT_DATA"):
        load("sonar", offline=True)
    monkeypatch.setenv("GPFLOW_EXT_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"offline is set"):
        load("sonar")
    assert not pinned

    def fail(pin):
        raise OSError("no route to host")

    monkeypatch.setattr(openml, "download", fail)
    with pytest.raises(
        ConnectionError, match=r"no route to host; set GPFLOW_EXT_DATA .* or pass the path of a CSV"
    ):
        load("sonar", offline=False)


def test_openml_download_asks_for_the_pinned_id_and_decodes_levels(monkeypatch):
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    asked = {}

    def fetch_openml(**options):
        asked.update(options)
        return SimpleNamespace(
            data=np.array([[0.5, 1.0], [1.5, 0.0], [2.5, np.nan]]),
            target=np.array(["p", "q", "p"], dtype=object),
            feature_names=["u", "v"],
            categories={"v": ["24", "3"]},
        )

    monkeypatch.setattr(sklearn_datasets, "fetch_openml", fetch_openml)
    parsed = openml.download(KNOWN["ionosphere"].openml)
    assert (asked["data_id"], asked["as_frame"], asked["parser"]) == (59, False, "liac-arff")
    np.testing.assert_array_equal(parsed.X, [[0.5, 3.0], [1.5, 24.0], [2.5, np.nan]])
    assert (list(parsed.y), parsed.names) == (["p", "q", "p"], ("u", "v"))
