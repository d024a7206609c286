"""A shard of hidden states is whole, or goes on where it was; damage is found and named."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eyas.errors import EyasError
from eyas.states import (
    CAPTURED,
    FORMAT,
    NOT_FINITE,
    Captured,
    Sample,
    Shard,
    ShardWriter,
    bytes_per_token,
    captured_of,
)
from eyas.states_encoding import as_bytes, decode, encode

H = 8
METADATA = {"target": "t", "layers": "2,4,6"}


def samples(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Sample(f"s{k}", "D", rng.integers(0, 100, n).astype(np.int32), rng.integers(0, 2, n).astype(np.uint8))
        for k, n in enumerate(lengths)
    ]


def states(sample, k=0):
    """(aux [rows, 3·H], last [rows, H]) in bf16, another for each sample."""
    generator = torch.Generator().manual_seed(k)
    rows = len(sample.input_ids)
    return tuple(torch.randn(rows, width, generator=generator).bfloat16() for width in (3 * H, H))


def encoded(aux, last, encoding="bf16"):
    return as_bytes(encode(list(aux.split(H, dim=-1)), last, encoding))


def fill(writer, k):
    aux, last = states(writer.samples[k], k)
    half = len(aux) // 2
    for part in (slice(half, None), slice(0, half)):  # chunks, in any order
        slot = writer.slot(k)
        slot.write(part.start, encoded(aux[part], last[part], slot.encoding))
    writer.finish(k)


def write(path, given, encoding="bf16"):
    with ShardWriter(path, given, H, METADATA, encoding=encoding) as writer:
        for k in writer.pending:
            fill(writer, k)
        writer.publish()


def test_safetensors_reads_what_was_written(tmp_path):
    given = samples(5, 1, 30)
    write(tmp_path / "x.safetensors", given)
    tensors, shard = load_file(tmp_path / "x.safetensors"), Shard(tmp_path / "x.safetensors")
    shard.verify()
    assert tensors["offsets"].tolist() == [0, 5, 6, 36] and tensors["status"].tolist() == [CAPTURED] * 3
    assert tensors["aux"].dtype == tensors["last"].dtype == torch.bfloat16
    for k, sample in enumerate(given):
        rows = slice(*tensors["offsets"][k : k + 2].tolist())
        aux, last = states(sample, k)
        assert torch.equal(tensors["aux"][rows], aux) and torch.equal(tensors["last"][rows], last)
        assert tensors["input_ids"][rows].tolist() == sample.input_ids.tolist()
        assert tensors["loss_mask"][rows].tolist() == sample.loss_mask.tolist()
    assert shard.ids == [["s0", "D"], ["s1", "D"], ["s2", "D"]] and shard.metadata["layers"] == "2,4,6"
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_shard_may_be_empty(tmp_path):
    write(tmp_path / "x.safetensors", [])
    assert len(Shard(tmp_path / "x.safetensors")) == 0
    load_file(tmp_path / "x.safetensors")


def test_how_far_a_shard_is_can_be_read_while_it_is_written(tmp_path):
    given, path = samples(5, 6, 7, 8), tmp_path / "x.safetensors"
    assert captured_of(path) is None
    with ShardWriter(path, given, H, METADATA) as writer:
        assert captured_of(path) == Captured(4, 0, 26, 0)
        for k in (1, 3):
            fill(writer, k)
        assert captured_of(path) == Captured(4, 2, 26, 14)
        for k in writer.pending:
            fill(writer, k)
        writer.publish()
    assert captured_of(path) is None, "it has its name"
    whole, partial = path.read_bytes(), tmp_path / ".x.safetensors.partial"
    for damaged in (b"", whole[:5], whole[:100], whole[:-1], b"\xff" * 100, whole.replace(b'"status"', b'"statux"')):
        partial.write_bytes(damaged)
        with pytest.raises(ValueError):
            captured_of(path)


def test_an_interrupted_shard_goes_on_where_it_was(tmp_path):
    given, path = samples(5, 6, 7, 8), tmp_path / "x.safetensors"
    with ShardWriter(path, given, H, METADATA) as writer:
        for k in (1, 3):
            fill(writer, k)
        with pytest.raises(ValueError, match="2 samples are not finished"):
            writer.publish()
    assert not path.exists()
    with ShardWriter(path, given, H, METADATA) as writer:
        assert writer.pending == [0, 2]
        slot = writer.slot(3)
    with open(slot.path, "r+b") as file:  # what never reached the disk
        file.seek(slot.places["aux"][0] + 3)
        file.write(b"\x00\x01")
    with ShardWriter(path, given, H, METADATA) as writer:
        assert writer.pending == [0, 2, 3]
        for k in writer.pending:
            fill(writer, k)
        writer.publish()
    Shard(path).verify()


@pytest.mark.parametrize("other", [{"given": samples(5, 6, seed=1)}, {"layers": "3,4,6"}, {"given": samples(5, 7)}])
def test_another_content_or_target_starts_anew(tmp_path, other):
    with ShardWriter(tmp_path / "x.safetensors", samples(5, 6), H, METADATA) as writer:
        fill(writer, 0)
    given = other.get("given", samples(5, 6))
    metadata = {**METADATA, **{k: v for k, v in other.items() if k != "given"}}
    with ShardWriter(tmp_path / "x.safetensors", given, H, metadata) as writer:
        assert writer.pending == [0, 1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("encoding", ["bf16", "fp8"])
def test_states_that_are_not_finite_are_seen(tmp_path, bad, which, encoding):
    given = samples(5, 6)
    with ShardWriter(tmp_path / "x.safetensors", given, H, METADATA, encoding=encoding) as writer:
        fill(writer, 0)
        tensors = states(given[1], 1)
        writer.slot(1).write(0, encoded(*tensors, encoding))
        assert writer.is_finite(0) and writer.is_finite(1)
        tensors[which][5, 7] = bad
        writer.slot(1).write(0, encoded(*tensors, encoding))
        assert writer.is_finite(0) and not writer.is_finite(1)
        writer.finish(1, NOT_FINITE, (3, 1))
        assert writer.pending == []
        writer.publish()
    shard = Shard(tmp_path / "x.safetensors")
    shard.verify()
    assert shard.arrays["status"].tolist() == [CAPTURED, NOT_FINITE]
    assert shard.arrays["agreement"].tolist() == [[0, 0], [3, 1]]


def test_rows_beyond_a_sample_are_refused(tmp_path):
    with ShardWriter(tmp_path / "x.safetensors", samples(5, 6), H, METADATA) as writer:
        aux, last = states(writer.samples[1])
        with pytest.raises(ValueError, match="rows 0 to 6"):
            writer.slot(0).write(0, encoded(aux, last))
        with pytest.raises(ValueError, match=r"expected 6 of 48"):
            writer.slot(1).write(0, encoded(aux[:, : 2 * H], last))
        with pytest.raises(ValueError, match="states of aux_scale, aux, last_scale, last, expected aux, last"):
            writer.slot(1).write(0, encoded(aux, last, "fp8"))


def test_fp8_is_half_the_size_and_off_by_a_sixteenth_at_most(tmp_path):
    """Numbers from 1e-6 to 1e6 beside each other, states of zeros, and a layer far larger than the others."""
    given, path = samples(40, 9), tmp_path / "x.safetensors"
    magnitudes = torch.logspace(-6, 6, 40)[:, None]
    aux, last = states(given[0])
    aux, last = (aux * magnitudes).bfloat16(), (last * magnitudes).bfloat16()
    aux[:, 2 * H :] *= 300
    aux[3, :H] = last[5] = 0
    with ShardWriter(path, given, H, METADATA, encoding="fp8") as writer:
        writer.slot(0).write(0, encoded(aux, last, "fp8"))
        writer.finish(0)
        fill(writer, 1)
        writer.publish()
    shard = Shard(path)
    shard.verify()
    assert load_file(path)["aux"].dtype == torch.float8_e4m3fn
    for name, right in (("aux", aux), ("last", last)):
        found = decode(shard.arrays, name, slice(0, 40))
        assert found.dtype == torch.bfloat16 and found.shape == right.shape
        found, right = (x.float().view(40, -1, H) for x in (found, right))
        scale = right.abs().amax(dim=-1, keepdim=True) / 448
        bound = torch.maximum(right.abs() / 16, scale * 2**-10) * (1 + 2**-7)  # and what bf16 rounds
        assert ((found - right).abs() <= bound).all()
        assert ((found - right).abs() > bound / 4).any(), "it is fp8"
    write(tmp_path / "bf16.safetensors", given)
    assert bytes_per_token(7168, 3, "bf16") - 5 == 57344
    assert bytes_per_token(7168, 3, "fp8") < 0.51 * bytes_per_token(7168, 3, "bf16")


@pytest.mark.parametrize("encoding", ["bf16", "fp8"])
def test_a_sample_is_read_where_it_lies(tmp_path, encoding):
    given = samples(5, 1, 30)
    write(tmp_path / "x.safetensors", given, encoding)
    shard = Shard(tmp_path / "x.safetensors")
    for k in (2, 0, 1):
        rows = slice(*shard.arrays["offsets"][k : k + 2])
        for name, right in zip(("aux", "last"), states(given[k], k), strict=True):
            found = decode(shard.arrays, name, rows)
            assert torch.equal(found, right) if encoding == "bf16" else torch.allclose(found, right, rtol=0.07)
            assert torch.equal(found[[0, -1]], decode(shard.arrays, name, np.array([rows.start, rows.stop - 1])))


def test_damage_is_found_and_named(tmp_path):
    path = tmp_path / "hidden_states/train/x.safetensors"
    write(path, samples(5, 6))
    remedy = r"run `snakemake --force hidden_states/train/x\.safetensors` to capture it again"
    whole = path.read_bytes()
    for at in (-40, len(whole) // 2, len(whole) - 200):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(EyasError, match=remedy):
            Shard(path).verify()
    for damaged, said in (
        (whole[:-1], "bytes, expected"),
        (whole[:100], "its header is cut"),
        (b"", "cannot mmap"),
        (whole.replace(FORMAT.encode(), FORMAT.encode()[:-1] + b"0"), "format is"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(EyasError, match=f"not a whole shard of hidden states.*{said}.*{remedy}"):
            Shard(path)
