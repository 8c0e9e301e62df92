"""Reading .npz and IDX files: what is accepted, what is converted, and every refusal."""

import gzip
import io
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.data import Dataset, load
from client.data.bounded import unpacked_limit
from client.errors import DataError

Arrays = dict[str, np.ndarray]
X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 2, 1])


def npz(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def npy(array: np.ndarray) -> bytes:
    f = io.BytesIO()
    np.lib.format.write_array(f, array, allow_pickle=True)
    return f.getvalue()


def zipped(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> str:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return str(path)


def header(text: str, body: bytes = b"") -> bytes:
    raw = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw + body


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + bytes(array)
    )


IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
LABELS = np.array([3, 0, 2, 2, 1], np.uint8)


def idx_pair(folder: Path, suffix: str = "", prefix: str = "train-") -> Path:
    folder.mkdir(exist_ok=True)
    pack = gzip.compress if suffix == ".gz" else bytes
    images = folder / f"{prefix}images-idx3-ubyte{suffix}"
    images.write_bytes(pack(idx(IMAGES)))
    (folder / f"{prefix}labels-idx1-ubyte{suffix}").write_bytes(pack(idx(LABELS)))
    return images


def assert_holds_idx(dataset: Dataset) -> None:
    np.testing.assert_array_equal(dataset.x[:, 0], IMAGES)
    np.testing.assert_array_equal(dataset.y, LABELS)
    assert dataset.x.shape == (5, 1, 4, 3)
    assert dataset.x.dtype == np.uint8
    assert dataset.y.dtype == np.int32


# -- npz: accepted and converted -----------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_columns(save: object, tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    save(path, x=X, y=Y, person=np.array(["a", "ü", "c", ""]), day=np.arange(4))  # type: ignore[operator]
    dataset = load(str(path))
    np.testing.assert_array_equal(dataset.x, X)
    np.testing.assert_array_equal(dataset.y, Y)
    assert dataset.y.dtype == np.int32
    assert dataset.columns["person"].tolist() == ["a", "ü", "c", ""]
    assert dataset.columns["day"].tolist() == [0, 1, 2, 3]
    assert dataset.source == str(path)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "f8", ">f8", "f2", "i1", "i2", "u2", "i8", ">i4"])
def test_numbers_of_other_widths_become_float32(dtype: str, tmp_path: Path) -> None:
    dataset = load(npz(tmp_path / "d.npz", x=X.astype(dtype), y=Y.astype(">i8")))
    assert dataset.x.dtype == np.dtype("=f4")
    assert dataset.x.dtype.isnative
    np.testing.assert_array_equal(dataset.x, X)
    np.testing.assert_array_equal(dataset.y, Y)


def test_uint8_images_gain_a_channel_and_nothing_else_does(tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert load(npz(tmp_path / "a.npz", x=images, y=[0, 1])).x.shape == (2, 1, 4, 3)
    assert load(npz(tmp_path / "b.npz", x=images[:, None], y=[0, 1])).x.shape == (2, 1, 4, 3)
    assert load(npz(tmp_path / "c.npz", x=images * 1.0, y=[0, 1])).x.shape == (2, 4, 3)
    assert load(npz(tmp_path / "d.npz", x=images[:, 0], y=[0, 1])).x.shape == (2, 3)


@pytest.mark.parametrize("dtype", ["i2", "<u2", ">i4", "i8"])
def test_images_in_integers_of_any_width_are_pixels(dtype: str, tmp_path: Path) -> None:
    images = np.array([0, 1, 254, 255], np.uint8).reshape(2, 1, 2, 1)
    found = load(npz(tmp_path / "a.npz", x=images.astype(dtype), y=[0, 1])).x
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, images)
    limits = np.iinfo(dtype)
    for value in {256, int(limits.min), int(limits.max)} - {0}:
        other = images.astype(dtype)
        other[1] = value
        with pytest.raises(DataError, match=rf"x: found .* images from .*{value}.*: scale"):
            load(npz(tmp_path / "b.npz", x=other, y=[0, 1]))
    sequences = images[:, :, :, 0].astype(dtype)
    assert load(npz(tmp_path / "c.npz", x=sequences, y=[0, 1])).x.dtype == np.float32


def test_fortran_order_is_read_in_its_order_and_made_contiguous(tmp_path: Path) -> None:
    dataset = load(npz(tmp_path / "d.npz", x=np.asfortranarray(X), y=Y))
    np.testing.assert_array_equal(dataset.x, X)
    assert dataset.x.flags.c_contiguous


def test_keys_of_the_npy_header_come_in_any_order(tmp_path: Path) -> None:
    text = "{'shape': (4, 3), 'descr': '<f4', 'fortran_order': False}"
    path = zipped(tmp_path / "d.npz", {"x.npy": header(text, X.tobytes()), "y.npy": npy(Y)})
    np.testing.assert_array_equal(load(path).x, X)


# -- npz: refused --------------------------------------------------------------------------------


def with_value(value: float, dtype: str = "f4") -> np.ndarray:
    x = X.astype(dtype)
    x[1, 2] = x[3, 0] = value
    return x


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"no array 'y', found: x; save it"),
        ({"x_train": X, "y_train": Y}, r"no array 'x', found: x_train, y_train; save it"),
        ({"x": with_value(np.nan), "y": Y}, r"x: 2 of 12 .* at index \[1, 2\]"),
        ({"x": with_value(-np.inf), "y": Y}, r"x: 2 of 12 .* infinite"),
        ({"x": with_value(1e300, "f8"), "y": Y}, r"x: 2 of 12 .* infinite in float32"),
        (
            {"x": with_value(2**24 + 1, "i4"), "y": Y},
            r"x: 2 of 12 .* beyond 16777216, .* is 16777217 at index \[1, 2\]",
        ),
        ({"x": with_value(-(2**63), "i8"), "y": Y}, r"x: 2 of 12 .* is -9223372036854775808 at"),
        ({"x": X.astype("c8"), "y": Y}, r"x: found dtype complex64, allowed: uint8"),
        ({"x": X > 3, "y": Y}, r"x: found dtype bool, allowed: uint8"),
        ({"x": X.astype("U4"), "y": Y}, r"x: found dtype <U4, allowed: uint8"),
        ({"x": X.astype("g"), "y": Y}, r"x: found dtype float128, allowed: uint8"),
        ({"x": X.astype("S4"), "y": Y}, r"x: found dtype '\|S4', allowed: numbers"),
        ({"x": X.astype(object), "y": Y}, r"x: found dtype '\|O', .* never loaded"),
        ({"x": np.zeros(4, [("a", "f4")]), "y": Y}, r"x: found an array of records"),
        ({"x": np.float32(1), "y": Y}, r"x: found shape \(\), needs"),
        ({"x": X[:, 0], "y": Y}, r"x: found shape \(4,\), needs"),
        ({"x": X[:0], "y": Y[:0]}, r"x: found shape \(0, 3\), which holds no numbers"),
        ({"x": X[:, :0], "y": Y}, r"x: found shape \(4, 0\), which holds no numbers"),
        ({"x": X, "y": Y[:3]}, r"x has 4 examples and y has 3 labels"),
        ({"x": X, "y": Y == 1}, r"y: found dtype bool, needs whole"),
        ({"x": X, "y": Y - 1}, r"y: 1 labels are out of range, the first is -1 at index 0"),
        ({"x": X, "y": Y + 2**31 - 2}, r"y: 1 labels .* first is 2147483648 at index 2"),
        ({"x": X, "y": Y.astype("u8") + 2**63}, r"y: 4 labels are out of range"),
        ({"x": X, "y": np.int32(3)}, r"y: found shape \(\), needs labels"),
        ({"x": X, "y": Y, "z": X}, r"z: found shape \(4, 3\); besides x and y"),
        ({"x": X, "y": Y, "z": Y[:2]}, r"z: found shape \(2,\), needs one value for each of the 4"),
        ({"x": X, "y": Y, "z": Y * 0.5}, r"z: found dtype float64, allowed: integers or text"),
        ({"x": X, "y": Y, "z": Y.astype("S")}, r"z: found dtype '\|S\d+', allowed"),
    ],
)
def test_unfit_arrays_are_one_line(arrays: Arrays, message: str, tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz", **arrays)
    with pytest.raises(DataError, match=message) as e:
        load(path)
    assert str(e.value).startswith(f"{path}: ")
    assert "\n" not in str(e.value)


GOOD = {"x.npy": npy(X), "y.npy": npy(Y)}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({**GOOD, "readme.txt": b"hello"}, r"holds 'readme\.txt', allowed: \.npy arrays"),
        ({**GOOD, "a\nb.npy": npy(Y)}, r"the name 'a\\nb\.npy' is not plain text"),
        ({**GOOD, "x.npy": b""}, r"x: does not start as a \.npy"),
        ({**GOOD, "x.npy": b"\x93NUMPY\x09\x00" + b" " * 99}, r"x: does not start as a \.npy"),
        ({**GOOD, "x.npy": npy(X)[:-1]}, r"x: shape \(4, 3\) .* takes 48 bytes, found 47"),
        ({**GOOD, "x.npy": npy(X) + b"?"}, r"x: shape \(4, 3\) .* takes 48 bytes, found 49"),
        ({**GOOD, "x.npy": header("{")}, r"x: the \.npy header cannot be read"),
        ({**GOOD, "x.npy": header("[1]")}, r"x: the \.npy header cannot be read"),
        ({**GOOD, "x.npy": header("(" * 3000)}, r"x: the \.npy header cannot be read"),
        ({**GOOD, "x.npy": header("0" * 20000)}, r"x: a \.npy header of 20001 bytes, allowed"),
        (
            {**GOOD, "x.npy": header("{'descr':'<f4','fortran_order':False,'shape':(-4, -3)}")},
            r"x: the \.npy header has no valid shape",
        ),
        (
            {**GOOD, "x.npy": header("{'descr':'<f4','fortran_order':False,'shape':(1<<40,)}")},
            r"x: the \.npy header cannot be read",
        ),
        (
            {
                **GOOD,
                "x.npy": header(f"{{'descr':'<f4','fortran_order':False,'shape':({2**60},)}}"),
            },
            r"x: shape \(1152921504606846976,\) of float32 takes",
        ),
        (
            {
                **GOOD,
                "x.npy": header(f"{{'descr':'<f4','fortran_order':False,'shape':(0,{2**70})}}"),
            },
            r"not a whole \.npz file",
        ),
        (
            {**GOOD, "x.npy": header("{'descr':'<f3','fortran_order':False,'shape':(1,)}")},
            r"x: found dtype '<f3', allowed",
        ),
        (
            {**GOOD, "z.npy": npy(np.full(4, 0x110000, "<u4")).replace(b"'<u4'", b"'<U1'")},
            r"z: holds characters that are not Unicode",
        ),
    ],
)
def test_damaged_members_are_one_line(
    members: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    path = zipped(tmp_path / "d.npz", members)
    with pytest.raises(DataError, match=message) as e:
        load(path)
    assert str(e.value).startswith(f"{path}: ")
    assert "\n" not in str(e.value)


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello", npy(X)):
        (tmp_path / "d.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"d\.npz: not a whole \.npz file .*; save it again"):
            load(str(tmp_path / "d.npz"))


def test_a_changed_value_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = Path(zipped(tmp_path / "d.npz", GOOD, zipfile.ZIP_STORED))
    content = path.read_bytes()
    at = content.index(X.tobytes()) + 5
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])
    with pytest.raises(DataError, match=r"not a whole \.npz file \(Bad CRC-32 for file 'x\.npy'\)"):
        load(str(path))


def test_examples_larger_than_a_read_are_whole_and_writable(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 1, 1000, 1000), np.uint8)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "d.npz", x=x, y=np.arange(3))
        found = load(str(tmp_path / "d.npz")).x
        np.testing.assert_array_equal(found, x)
        assert found.flags.writeable


def test_another_compression_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "d.npz", GOOD, zipfile.ZIP_LZMA)
    with pytest.raises(DataError, match=r"'x\.npy' is packed by method 14, allowed: stored"):
        load(path)


def test_an_array_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of the second
        archive.writestr("x.npy", npy(X))
        archive.writestr("x.npy", npy(X + 1))
    with pytest.raises(DataError, match=r"holds 'x\.npy' twice"):
        load(str(tmp_path / "d.npz"))


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = zipped(tmp_path / "d.npz", {**GOOD, "x.npy": npy(np.zeros((100, 2**20), np.uint8))})
    packed = Path(path).stat().st_size
    assert packed < 2**20
    with pytest.raises(DataError, match=rf"{packed} bytes that claim to unpack to 104\d+, allowed"):
        load(path)


def test_data_that_packs_well_stays_within_the_limit(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "d.npz", x=np.zeros((1000, 1, 28, 28), np.uint8), y=np.zeros(1000, int)
    )
    assert len(load(str(tmp_path / "d.npz"))) == 1000
    assert unpacked_limit(10**9) == 10**11


def test_a_folder_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.npz").mkdir()
    with pytest.raises(DataError, match=r"d\.npz: needs one file train-images-idx3-ubyte"):
        load(str(tmp_path / "d.npz"))


# -- IDX ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("prefix", ["train-", "t10k-", "emnist-letters-train-"])
def test_idx_pairs_are_read(suffix: str, prefix: str, tmp_path: Path) -> None:
    images = idx_pair(tmp_path, suffix, prefix)
    dataset = load(str(images))
    assert_holds_idx(dataset)
    assert dataset.source == str(images)


def test_idx_with_dots_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "train-images.idx3-ubyte").write_bytes(idx(IMAGES))
    (tmp_path / "train-labels.idx1-ubyte").write_bytes(idx(LABELS))
    assert_holds_idx(load(str(tmp_path / "train-images.idx3-ubyte")))


def test_idx_below_a_folder_called_images(tmp_path: Path) -> None:
    assert_holds_idx(load(str(idx_pair(tmp_path / "images-idx3-ubyte"))))


def test_labels_may_be_packed_otherwise_than_images(tmp_path: Path) -> None:
    images = idx_pair(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.with_name(labels.name + ".gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    assert_holds_idx(load(str(images)))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_gives_its_training_pair(suffix: str, tmp_path: Path) -> None:
    images = idx_pair(tmp_path, suffix)
    idx_pair(tmp_path, suffix, "t10k-")
    (tmp_path / "README").write_text("beside")
    dataset = load(str(tmp_path))
    assert_holds_idx(dataset)
    assert dataset.source == str(images)


def test_a_folder_with_the_pair_plain_and_packed_reads_the_plain_one(tmp_path: Path) -> None:
    plain = idx_pair(tmp_path)
    idx_pair(tmp_path, ".gz")
    assert load(str(tmp_path)).source == str(plain)


def test_a_folder_without_one_training_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"needs one file train-images-idx3-ubyte .* 0 other files"):
        load(str(tmp_path))
    idx_pair(tmp_path, prefix="emnist-letters-train-")
    idx_pair(tmp_path, prefix="emnist-digits-train-")
    with pytest.raises(DataError, match=r"found emnist-digits-train-images-idx3-ubyte, emnist-let"):
        load(str(tmp_path))


def test_missing_labels_are_named(tmp_path: Path) -> None:
    images = idx_pair(tmp_path, ".gz")
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"no train-labels-idx1-ubyte\.gz or train-labels-idx1-uby"):
        load(str(images))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("images-idx3", b"", "starts with bytes none, needs 00000803"),
        ("images-idx3", idx(LABELS), "starts with bytes 00000801, needs 00000803: IDX of unsigned"),
        (
            "images-idx3",
            b"\0\0\x0d\x03" + idx(IMAGES)[4:],
            "starts with bytes 00000d03, needs 0000",
        ),
        ("images-idx3", idx(IMAGES)[:9], "ends within its header"),
        ("images-idx3", idx(IMAGES)[:-1], r"shape \(5, 4, 3\) takes 60 bytes"),
        ("images-idx3", idx(IMAGES) + b"?", r"shape \(5, 4, 3\) takes 60 bytes, found more"),
        ("images-idx3", b"\0\0\x08\x03" + b"\xff" * 12, "the file can hold at most"),
        ("images-idx3", idx(IMAGES[:3]), "3 images, but train-labels-idx1-ubyte.* has 5 labels"),
        ("images-idx3", idx(IMAGES[:0]), "0 images, but"),
        ("labels-idx1", idx(IMAGES), "starts with bytes 00000803, needs 00000801"),
        ("labels-idx1", idx(LABELS)[:-2], r"shape \(5,\) takes 5 bytes"),
    ],
)
def test_damaged_idx_is_one_line(
    suffix: str, name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    images = idx_pair(tmp_path, suffix)
    damaged = tmp_path / f"train-{name}-ubyte{suffix}"
    damaged.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(DataError, match=message) as e:
        load(str(images))
    assert str(e.value).startswith(str(damaged) if "but" not in message else str(images))
    assert "\n" not in str(e.value)


def test_idx_without_examples_is_refused(tmp_path: Path) -> None:
    images = idx_pair(tmp_path)
    images.write_bytes(idx(IMAGES[:0]))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(LABELS[:0]))
    with pytest.raises(DataError, match=r"x: found shape \(0, 4, 3\), which holds no numbers"):
        load(str(images))


def test_truncated_gzip_is_refused(tmp_path: Path) -> None:
    images = idx_pair(tmp_path, ".gz")
    whole = images.read_bytes()
    for content in (b"plain", whole[:5], whole[: len(whole) // 2], whole[:-9], whole[:-1]):
        images.write_bytes(content)
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: not a whole gzip file"):
            load(str(images))


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    images = idx_pair(tmp_path, ".gz")
    images.write_bytes(gzip.compress(idx(np.zeros((100, 1024, 1024), np.uint8))))
    with pytest.raises(DataError, match=r"takes 104857600 bytes, but the file can hold at most"):
        load(str(images))


# -- no input raises anything else ----------------------------------------------------------------


def load_or_refuse(path: Path) -> None:
    try:
        dataset = load(str(path))
    except DataError as e:
        message = str(e)
    else:
        assert len(dataset) == len(dataset.y) > 0
        assert np.isfinite(dataset.x).all()
        return
    assert "\n" not in message
    assert str(path.parent) in message


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """``whole`` cut off, or with some of its bytes changed."""
    places = st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)

    def change(cut: int, changes: list[tuple[int, int]]) -> bytes:
        content = bytearray(whole)
        for at, value in changes:
            content[at] = value
        return bytes(content[:cut])

    return st.builds(change, st.one_of(st.just(len(whole)), st.integers(0, len(whole))), places)


def npz_bytes(method: int) -> bytes:
    f = io.BytesIO()
    with zipfile.ZipFile(f, "w", method) as archive:
        for name, array in {"x": X, "y": Y, "person": np.array(list("abca"))}.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy(array), method)
    return f.getvalue()


def npy_bytes() -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=200), damaged(npy(X)), st.text(max_size=80).map(header))


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=400, deadline=None)
@given(
    content=st.one_of(
        st.binary(max_size=300),
        damaged(npz_bytes(zipfile.ZIP_STORED)),
        damaged(npz_bytes(zipfile.ZIP_DEFLATED)),
    )
)
def test_any_bytes_as_npz_are_read_or_refused(content: bytes, scratch: Path) -> None:
    path = scratch / "d.npz"
    path.write_bytes(content)
    load_or_refuse(path)


@settings(max_examples=300, deadline=None)
@given(x=npy_bytes(), y=npy_bytes(), z=npy_bytes())
def test_any_bytes_as_members_are_read_or_refused(
    x: bytes, y: bytes, z: bytes, scratch: Path
) -> None:
    for members in ({**GOOD, "x.npy": x}, {**GOOD, "y.npy": y}, {**GOOD, "z.npy": z}):
        zipped(scratch / "d.npz", members, zipfile.ZIP_STORED)
        load_or_refuse(scratch / "d.npz")


@settings(max_examples=300, deadline=None)
@given(
    images=st.one_of(st.binary(max_size=100), damaged(idx(IMAGES))),
    labels=st.one_of(st.binary(max_size=40), damaged(idx(LABELS))),
    level=st.integers(0, 9),
)
def test_any_bytes_as_idx_are_read_or_refused(
    images: bytes, labels: bytes, level: int, scratch: Path
) -> None:
    for suffix in ("", ".gz"):
        path = scratch / f"train-images-idx3-ubyte{suffix}"
        other = scratch / f"train-labels-idx1-ubyte{suffix}"
        for x, y in ((images, idx(LABELS)), (idx(IMAGES), labels)):
            path.write_bytes(gzip.compress(x, level, mtime=0) if suffix else x)
            other.write_bytes(gzip.compress(y, level, mtime=0) if suffix else y)
            load_or_refuse(path)


@settings(max_examples=300, deadline=None)
@given(content=st.one_of(st.binary(max_size=100), damaged(gzip.compress(idx(IMAGES), mtime=0))))
def test_any_bytes_as_gzipped_idx_are_read_or_refused(content: bytes, scratch: Path) -> None:
    path = scratch / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    (scratch / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS), mtime=0))
    load_or_refuse(path)
