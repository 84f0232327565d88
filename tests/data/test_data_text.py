"""Texts: the tokeniser and the vocabulary of methods.md 5, AG News, and own CSV files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pflbench import data
from pflbench.data import text
from pflbench.errors import UserError


@pytest.mark.parametrize(
    ("sentence", "tokens"),
    [
        ("The CAT sat.", "the cat sat ."),
        ("it's, (so) they say!?", "it ' s , ( so ) they say ! ?"),
        ('a "quoted" word', "a quoted word"),
        ("one;two:three<br />four", "one two three four"),
        ("  many \t kinds\nof space ", "many kinds of space"),
        (r"back\slash #36;10 A-B 3.5", r"back\slash #36 10 a-b 3 . 5"),
        ("", ""),
    ],
)
def test_tokens(sentence: str, tokens: str) -> None:
    assert text.tokenize(sentence) == tokens.split()


def test_vocabulary_by_frequency_then_alphabet_over_whole_texts() -> None:
    long = "z " * 300 + "only-after-the-cut"
    ids, size = text.encode(["b a b c", "c d <unk>", long])
    # z 300, b 2, c 2, a 1, d 1, only-after-the-cut 1; "<unk>" in a text is index 0 itself
    assert size == 7
    assert ids.shape == (3, 200)
    assert ids[0].tolist() == [2, 4, 2, 3] + [0] * 196
    assert ids[1].tolist() == [3, 5] + [0] * 198
    assert ids[2].tolist() == [1] * 200


AG_TEST = r'''
"3","Fears for T N pension","Unions say they are 'disappointed' with Federal Mogul."
"4","A second\team","competing for the  #36;10 million ""prize"""
"1","World","peace"
"2","Sport","peace"
'''.lstrip()
AG_TRAIN = '"1","World war","ends"\n'


def put_agnews(root: Path, **files: str) -> None:
    folder = root / "ag_news_csv"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.csv").write_text(content)


def test_agnews_test_file_alone(tmp_path: Path) -> None:
    put_agnews(tmp_path, test=AG_TEST)
    arrays = data.load(data.parse("agnews:test", tmp_path), tmp_path)
    assert (arrays.y.tolist(), arrays.train_size) == ([2, 3, 0, 1], None)
    assert arrays.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert arrays.x.dtype == np.int64
    by_hand = [
        r"fears for t n pension unions say they are ' disappointed ' with federal mogul .",
        r"a second\team competing for the #36 10 million prize",
        "world peace",
        "sport peace",
    ]
    ids, vocabulary = text.encode(by_hand)
    np.testing.assert_array_equal(arrays.x, ids)
    assert arrays.vocabulary == vocabulary


def test_agnews_merges_train_before_test_and_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_agnews(tmp_path, train=AG_TRAIN, test=AG_TEST)
    calls: list[tuple[str, int, int]] = []
    spec = data.parse("agnews", tmp_path)
    first = data.load(spec, tmp_path, lambda *call: calls.append(call))
    assert (first.y.tolist(), first.train_size) == ([0, 2, 3, 0, 1], 1)
    assert calls == [("tokenising texts", 5, 5)]
    monkeypatch.delattr(text, "tokenize")
    second = data.load(spec, tmp_path)
    np.testing.assert_array_equal(second.x, first.x)
    assert (second.vocabulary, second.classes, second.y.tolist()) == (first.vocabulary, first.classes, first.y.tolist())
    assert second.train_size == 1


def test_a_corrupt_agnews_file_is_named_and_not_used(tmp_path: Path) -> None:
    put_agnews(tmp_path, test=AG_TEST)
    path = tmp_path / "ag_news_csv" / "test.csv"
    path.write_text(AG_TEST[:-30])
    with pytest.raises(UserError, match=r"test\.csv is corrupt: .*test\.csv, near line 3") as e:
        data.load(data.parse("agnews:test", tmp_path), tmp_path)
    assert "pflbench data download agnews" in e.value.hint
    assert [f.state for f in data.verify("agnews:test", tmp_path)] == ["corrupt"]


def own(tmp_path: Path, content: str | bytes) -> data.Arrays:
    path = tmp_path / "own.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return data.load(data.parse(f"csv:{path}", tmp_path), tmp_path)


def test_own_texts_with_a_header(tmp_path: Path) -> None:
    arrays = own(tmp_path, '\ufeffid,Text,Label\r\n1,"good, very good",pos\r\n2,bad,neg\r\n3,good,pos\r\n')
    assert (arrays.classes, arrays.y.tolist()) == (("neg", "pos"), [1, 0, 1])
    assert (arrays.vocabulary, arrays.train_size) == (5, None)  # <unk> good , bad very
    assert arrays.x[0, :5].tolist() == [1, 2, 4, 1, 0]


def test_own_texts_without_a_header_and_labels_in_order_of_their_value(tmp_path: Path) -> None:
    arrays = own(tmp_path, "10,title,words\n9,title,other words\n-1,x,y\n")
    assert (arrays.classes, arrays.y.tolist()) == (("-1", "9", "10"), [2, 1, 0])
    assert arrays.x[1, :4].tolist() == [1, 3, 2, 0]  # title 2, words 2, other 1
    long = "9" * 6000  # more digits than Python makes a number of
    assert own(tmp_path, f"label,text\n{long},a b\n10,c\n9,d\n--5,e\n-3,f\n").classes == ("-3", "9", "10", "--5", long)


def test_an_empty_cell_is_no_owner(tmp_path: Path) -> None:
    assert own(tmp_path, "label,text,owner\n0,a,ann\n1,b, \n").owner is None


def test_a_cache_of_a_version_without_owners_hides_none(tmp_path: Path) -> None:
    content = "label,text,owner\n0,a,ann\n1,b,bob\n"
    path = tmp_path / ".cache" / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.text.npz"
    path.parent.mkdir()
    np.savez(path, x=np.zeros((2, 200), np.int32), y=np.arange(2), classes=["0", "1"], vocabulary=3, train_size=np.array([], int))
    owner = own(tmp_path, content).owner
    assert owner is not None
    assert owner.tolist() == ["ann", "bob"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('pos,"cut off in the mid', "near line 1: unexpected end of data"),
        ("pos,fine\nneg\n", "line 2: 1 columns"),
        ("label,text\npos,fine\nneg\n", "line 3: 1 columns"),
        (b"pos,caf\xe9\nneg,tea\n", "utf-8"),
        ("pos,one\npos,two\n", "2 texts of 1 classes"),
        ("sentence,category\nso good,pos\nso bad,neg\n", "no other line has the label of the first, 'sentence'"),
        ("category,sentence\npos,so good\nneg,so bad\npos,fine\n", "the label of the first, 'category'"),
        ("label,sentence\npos,so good\nneg,so bad\n", "the label of the first, 'label'"),
        ("", "0 texts of 0 classes"),
    ],
)
def test_unfit_texts_are_refused(content: str | bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as e:
        own(tmp_path, content)
    assert "own.csv" in e.value.message
