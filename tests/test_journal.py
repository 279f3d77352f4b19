"""The journal: whatever happens to bytes or writer, what can be read is read, and what is lost is counted."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE, timing
from trainwatch import journal
from trainwatch.journal import JournalFull, Position, Reader, Record, Writer


def write(directory: Path, payloads: list[bytes], segment_bytes: int = journal.SEGMENT_BYTES) -> list[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    writer = Writer(directory, segment_bytes=segment_bytes)
    for payload in payloads:
        writer.append(payload)
    writer.close()
    return payloads


def read_all(reader: Reader, limit: int = 1024 * 1024) -> list[Record]:
    records: list[Record] = []
    while more := reader.read(limit):
        records += more
    return records


def check(records: list[Record], payloads: list[bytes]) -> None:
    """Every record is what was written under its sequence, in order, and every gap is told."""
    expected = 0
    for record in records:
        assert record.sequence - record.lost == expected
        assert record.payload == payloads[record.sequence]
        assert record.after.sequence == record.sequence + 1
        expected = record.sequence + 1


def some_payloads(count: int, seed: int = 0, most: int = 60) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.randrange(most)) for _ in range(count)]


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    payloads = [*write(tmp_path / "a", [b"one", b"", b"\x00" * 100, b"x" * 3_000_000, b"end"])]
    records = read_all(Reader(tmp_path / "a"))
    assert [r.payload for r in records] == payloads
    assert [r.lost for r in records] == [0] * 5


@pytest.mark.parametrize("limit", [1, 17, 100, 1 << 20])
def test_reading_in_pieces_of_any_size(tmp_path: Path, limit: int) -> None:
    payloads = write(tmp_path / "a", some_payloads(200), segment_bytes=700)
    assert len(journal.segments(tmp_path / "a")) > 5
    records = read_all(Reader(tmp_path / "a"), limit)
    assert [r.payload for r in records] == payloads


def test_a_read_is_about_as_large_as_asked_for_even_behind_a_large_record(tmp_path: Path) -> None:
    write(tmp_path / "a", [b"x" * 5000, *[b"y" * 100] * 1000])
    reader = Reader(tmp_path / "a")
    assert len(reader.read(1000)) == 1
    assert len(reader.read(1000)) <= 10


def test_reading_goes_on_from_any_position(tmp_path: Path) -> None:
    payloads = write(tmp_path / "a", some_payloads(60), segment_bytes=500)
    for record in read_all(Reader(tmp_path / "a")):
        rest = read_all(Reader(tmp_path / "a", record.after))
        assert [r.payload for r in rest] == payloads[record.sequence + 1 :]


def test_seek_goes_to_any_sequence(tmp_path: Path) -> None:
    write(tmp_path / "a", some_payloads(60), segment_bytes=500)
    reader = Reader(tmp_path / "a")
    for sequence in random.Random(1).sample(range(60), 60):
        reader.seek(sequence)
        assert reader.position.sequence == sequence
        assert reader.read(1)[0].sequence == sequence
    reader.seek(1000)
    assert reader.position.sequence == 60
    assert reader.read() == []


def test_seek_into_damage_goes_before_it_so_that_the_loss_is_told(tmp_path: Path) -> None:
    payloads = write(tmp_path / "a", [b"payload %d" % i for i in range(10)])
    file = next((tmp_path / "a").glob("*.twj"))
    file.write_bytes(file.read_bytes().replace(b"payload 4", b"paYload 4"))
    reader = Reader(tmp_path / "a")
    reader.seek(4)
    record = reader.read(1)[0]
    assert (record.sequence, record.lost, record.payload) == (5, 1, payloads[5])


@pytest.mark.parametrize("segment_bytes", [1 << 20, 120])
def test_any_single_byte_flipped_costs_one_record_and_is_counted(tmp_path: Path, segment_bytes: int) -> None:
    payloads = write(tmp_path / "a", some_payloads(12, most=20), segment_bytes)
    for file in sorted((tmp_path / "a").glob("*.twj")):
        whole = file.read_bytes()
        for at in range(len(whole)):
            for flip in (0x01, 0x80, 0xFF):
                damaged = bytearray(whole)
                damaged[at] ^= flip
                file.write_bytes(damaged)
                records = read_all(Reader(tmp_path / "a"))
                check(records, payloads)
                assert len(records) == len(payloads) - 1, (file.name, at, flip)
        file.write_bytes(whole)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 120])
def test_any_single_byte_cut_out_costs_one_record_and_is_counted(tmp_path: Path, segment_bytes: int) -> None:
    payloads = write(tmp_path / "a", some_payloads(12, most=20), segment_bytes)
    for file in sorted((tmp_path / "a").glob("*.twj")):
        whole = file.read_bytes()
        for at in range(len(whole)):
            file.write_bytes(whole[:at] + whole[at + 1 :])
            records = read_all(Reader(tmp_path / "a"))
            check(records, payloads)
            assert len(records) == len(payloads) - 1, (file.name, at)
        file.write_bytes(whole)


def test_a_file_cut_off_anywhere_keeps_its_whole_records(tmp_path: Path) -> None:
    payloads = write(tmp_path / "a", some_payloads(12, most=20))
    file = next((tmp_path / "a").glob("*.twj"))
    whole = file.read_bytes()
    ends = [record.after.offset for record in read_all(Reader(tmp_path / "a"))]
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        reader = Reader(tmp_path / "a")
        records = read_all(reader)
        check(records, payloads)
        assert len(records) == sum(end <= size for end in ends)
        assert reader.unread() == size - max([end for end in ends if end <= size], default=0)


def test_a_torn_tail_is_waited_for_and_given_up_when_a_segment_follows(tmp_path: Path) -> None:
    write(tmp_path / "a", [b"0" * 50, b"1" * 50, b"2" * 50, b"3" * 50], segment_bytes=140)
    first, second = sorted((tmp_path / "a").glob("*.twj"))
    whole, later = first.read_bytes(), second.read_bytes()
    second.unlink()
    first.write_bytes(whole[:-5])
    reader = Reader(tmp_path / "a")
    assert [r.sequence for r in reader.read()] == [0]
    assert reader.read() == []
    first.write_bytes(whole)
    assert [(r.sequence, r.lost) for r in reader.read()] == [(1, 0)]
    reader = Reader(tmp_path / "a", Position(1, 0, 66))
    first.write_bytes(whole[:-5])
    assert reader.read() == []
    second.write_bytes(later)
    assert [(r.sequence, r.lost) for r in reader.read()] == [(2, 1), (3, 0)]


def test_a_damaged_length_in_front_of_megabytes_is_overcome_quickly(tmp_path: Path) -> None:
    payloads = write(tmp_path / "a", [b"first", *[random.Random(i).randbytes(100_000) for i in range(200)]])
    file = next((tmp_path / "a").glob("*.twj"))
    damaged = bytearray(file.read_bytes())
    damaged[2] ^= 0xFF  # the first record now claims sixteen megabytes
    file.write_bytes(damaged)
    with timing() as timed:
        records = read_all(Reader(tmp_path / "a"))
    assert timed.took < 5
    check(records, payloads)
    assert len(records) == 200


def test_pages_of_zeros_are_overcome_quickly(tmp_path: Path) -> None:
    payloads = write(tmp_path / "a", some_payloads(20))
    file = next((tmp_path / "a").glob("*.twj"))
    whole = file.read_bytes()
    cut = read_all(Reader(tmp_path / "a"))[9].after.offset
    file.write_bytes(whole[:cut] + bytes(8_000_000) + whole[cut:])
    with timing() as timed:
        records = read_all(Reader(tmp_path / "a"))
    assert timed.took < 5
    assert [r.payload for r in records] == payloads
    # And the same ones are not searched again and again when nothing follows them.
    file.write_bytes(whole[:cut] + random.Random(1).randbytes(4_000_000))
    reader = Reader(tmp_path / "a", records[9].after)
    assert reader.read() == []
    with timing() as timed:
        for _ in range(100):
            assert reader.read() == []
    assert timed.took < 0.5


def test_a_payload_of_sixteen_mebibytes_fits_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    tmp_path.joinpath("a").mkdir()
    writer = Writer(tmp_path / "a")
    largest = b"m" * journal.MAX_PAYLOAD
    assert writer.append(largest) == 0
    with pytest.raises(ValueError, match="too large"):
        writer.append(largest + b"x")
    assert writer.append(b"next") == 1
    assert [len(r.payload) for r in read_all(Reader(tmp_path / "a"))] == [len(largest), 4]


def test_random_damage_never_yields_a_wrong_record(tmp_path: Path) -> None:
    payloads = write(tmp_path / "a", some_payloads(80, most=100), segment_bytes=2000)
    files = sorted((tmp_path / "a").glob("*.twj"))
    originals = {file: file.read_bytes() for file in files}
    chance = random.Random(7)
    for _ in range(300):
        file = chance.choice(files)
        content = bytearray(originals[file])
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(content))
            kind = chance.randrange(4)
            if kind == 0:
                content[at] = chance.randrange(256)
            elif kind == 1:
                del content[at : at + chance.randrange(1, 200)]
            elif kind == 2:
                content[at:at] = chance.randbytes(chance.randrange(1, 200))
            else:
                content[at : at + 64] = bytes(64)
            content = content or bytearray(b"\x00")
        file.write_bytes(content)
        check(read_all(Reader(tmp_path / "a"), chance.choice([1, 200, 1 << 20])), payloads)
        file.write_bytes(originals[file])


_WRITER = """
import sys, time
from pathlib import Path
from trainwatch.journal import Writer
writer = Writer(Path(sys.argv[1]), segment_bytes=20_000)
number = 0
while number < int(sys.argv[2]):
    writer.append(b"%d:" % number + b"x" * (number * 37 % 400))
    number += 1
"""


def numbered(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number * 37 % 400)


def test_reading_while_another_process_writes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    count = 20_000
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path / "a"), str(count)])
    reader = Reader(tmp_path / "a")
    seen = 0
    deadline = time.monotonic() + PATIENCE
    while seen < count and time.monotonic() < deadline:
        for record in reader.read(5000):
            assert (record.sequence, record.lost) == (seen, 0)
            assert record.payload == numbered(seen)
            seen += 1
    assert process.wait(PATIENCE) == 0
    assert seen == count


def test_what_was_appended_survives_the_death_of_its_writer(tmp_path: Path) -> None:
    for attempt in range(5):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(directory), "100000000"])
        while not sum(file.stat().st_size for file in directory.glob("*.twj")) > 50_000 * attempt:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        records = read_all(Reader(directory))
        check(records, [numbered(i) for i in range(len(records))])
        assert sum(r.lost for r in records) == 0
        last = records[-1].after
        file = directory / f"{last.segment:020d}.twj"
        assert file.stat().st_size - last.offset < 420  # at most the one record that was being written


def test_a_full_disk_loses_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting needs more rights")
    (mount / "a").mkdir()
    writer = Writer(mount / "a", segment_bytes=20_000)
    try:
        kept: list[bytes] = []
        refused = 0
        for number in range(200):
            payload = b"%d " % number + b"x" * 1000
            try:
                assert writer.append(payload) == len(kept)
                kept.append(payload)
            except JournalFull:
                refused += 1
        assert 40 < len(kept) < 64
        assert refused == 200 - len(kept)
        records = read_all(Reader(mount / "a"))
        assert [r.payload for r in records] == kept
        # When space is free again, the journal takes events again, and is whole.
        sorted((mount / "a").glob("*.twj"))[0].unlink()
        assert writer.append(b"again") == len(kept)
        records = read_all(Reader(mount / "a", records[30].after))
        assert records[-1].payload == b"again"
        assert sum(r.lost for r in records) == 0
    finally:
        writer.close()
        subprocess.run(["umount", str(mount)], check=True)


def test_a_limit_on_file_size_cuts_no_record(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
            writer = Writer(tmp_path / "a", segment_bytes=100_000)
            full = 0
            for _ in range(10):
                try:
                    writer.append(b"x" * 400)
                except JournalFull:
                    full += 1
            writer.append(b"small")
            os._exit(0 if full == 7 else 3)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [len(r.payload) for r in read_all(Reader(tmp_path / "a"))] == [400, 400, 400, 5]


def test_each_start_of_a_process_makes_a_source_of_its_own(tmp_path: Path) -> None:
    names = [journal.create_source(tmp_path / "run" / "node", "rank0").name for _ in range(3)]
    assert [name.partition("~")[0] for name in names] == ["rank0", "rank0.1", "rank0.2"]
    assert [journal.attempt_of(name) for name in names] == [0, 1, 2]
    write(tmp_path / "run" / "node" / names[1], [b"x"])
    write(tmp_path / "run" / "node" / "agent@node", [b"x"])
    (tmp_path / "run" / "node" / "project").write_text("p")
    found = list(journal.sources(tmp_path))
    assert [(s.run, s.node, s.name, s.rank) for s in found] == [
        ("run", "node", "agent@node", None),
        ("run", "node", names[1], 0),
    ]


def test_no_name_is_ever_used_twice_also_on_a_fresh_disk(tmp_path: Path) -> None:
    pods = [tmp_path / str(pod) / "run" / "node" for pod in range(50)]
    names = [journal.create_source(pod, name).name for pod in pods for name in ("rank0", "rank0", "agent@node")]
    assert len(set(names)) == 150
    assert {name.partition("~")[0] for name in names} == {"rank0", "rank0.1", "agent@node"}


def test_attempts_are_counted_on_beside_other_ranks_and_names_without_a_suffix(tmp_path: Path) -> None:
    for name in ("rank1", "rank1.4", "rank10", "rank10.7~00000000", "agent@gpu.7", "rank1x"):
        (tmp_path / name).mkdir()
    assert journal.create_source(tmp_path, "rank1").name.startswith("rank1.5~")
    assert journal.create_source(tmp_path, "rank10").name.startswith("rank10.8~")
    assert journal.create_source(tmp_path, "agent@gpu.7").name.startswith("agent@gpu.7.1~")


@pytest.mark.parametrize(
    ("name", "rank", "attempt"),
    [
        ("rank0~7c1e5a04", 0, 0),
        ("rank0.1~9ab20f31", 0, 1),
        ("rank12.34~7c1e5a04", 12, 34),
        ("rank0", 0, 0),
        ("rank12.34", 12, 34),
        ("agent@gpu.7~7c1e5a04", None, 0),
        ("agent@rank0.1", None, 0),
        ("rank0.x", 0, 0),
        ("rank0.²", 0, 0),
        ("ranks", None, 0),
        ("rank٣", None, 0),
    ],
)
def test_what_a_name_says(tmp_path: Path, name: str, rank: int | None, attempt: int) -> None:
    assert journal.Source("run", "node", name, tmp_path).rank == rank
    assert journal.attempt_of(name) == attempt


def test_the_acknowledged_position_is_kept_and_a_broken_one_means_the_beginning(tmp_path: Path) -> None:
    assert journal.acknowledged(tmp_path) == Position()
    journal.acknowledge(tmp_path, Position(7, 3, 99))
    assert journal.acknowledged(tmp_path) == Position(7, 3, 99)
    for content in (b"", b"{", b'{"sequence": "x"}', b"\x00\xff"):
        (tmp_path / "acknowledged").write_bytes(content)
        assert journal.acknowledged(tmp_path) == Position()
