"""A shard of hidden states is whole, or goes on where it was; damage is found and named."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eyas.errors import EyasError
from eyas.states import CAPTURED, QUARANTINED, Sample, Shard, ShardWriter

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


def as_bytes(tensor):
    return tensor.view(torch.uint8).numpy().reshape(-1).data


def fill(writer, k):
    aux, last = states(writer.samples[k], k)
    half = len(aux) // 2
    for part in (slice(half, None), slice(0, half)):  # chunks, in any order
        writer.slot(k).write(part.start, as_bytes(aux[part].contiguous()), as_bytes(last[part].contiguous()))
    return writer.finish(k)


def write(path, given, **more):
    with ShardWriter(path, given, H, {**METADATA, **more}) as writer:
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
        file.seek(slot.aux + 3)
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
def test_states_that_are_not_finite_are_quarantined(tmp_path, bad, which):
    given = samples(5, 6)
    with ShardWriter(tmp_path / "x.safetensors", given, H, METADATA) as writer:
        assert fill(writer, 0)
        tensors = states(given[1], 1)
        tensors[which][5, 7] = bad
        writer.slot(1).write(0, *map(as_bytes, tensors))
        assert not writer.finish(1)
        assert writer.pending == []
        writer.publish()
    assert Shard(tmp_path / "x.safetensors").arrays["status"].tolist() == [CAPTURED, QUARANTINED]


def test_rows_beyond_a_sample_are_refused(tmp_path):
    with ShardWriter(tmp_path / "x.safetensors", samples(5, 6), H, METADATA) as writer:
        aux, last = states(writer.samples[1])
        with pytest.raises(ValueError, match="rows 0 to 6"):
            writer.slot(0).write(0, as_bytes(aux), as_bytes(last))
        with pytest.raises(ValueError, match=r"expected 6 of 48"):
            writer.slot(1).write(0, as_bytes(aux[:, : 2 * H].contiguous()), as_bytes(last))


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
        (whole.replace(b"eyas-hidden-states-1", b"eyas-hidden-states-0"), "format is"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(EyasError, match=f"not a whole shard of hidden states.*{said}.*{remedy}"):
            Shard(path)
