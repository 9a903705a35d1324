"""After everything was done once, the files of the database hold no secret in clear."""

from __future__ import annotations

from tests.control.services.everything import Everything
from tests.control.services.harness import PEOPLE


def test_files_contain_no_secret_password_or_code(everything: Everything) -> None:
    kinds = {secret.partition("_")[0] for secret in everything.secrets if secret.startswith("tg")}
    assert kinds == {"tg", "tga", "tgr", "tgp", "tgs", "tgd", "tgi", "tgl", "tgw"}
    # While it is open, the newest pages are in the write-ahead log.
    files = {path.name: path.read_bytes() for path in everything.harness.folder.iterdir()}
    assert {"control.db", "control.db-wal"} <= set(files)
    assert PEOPLE["loner"].encode() in files["control.db"] + files["control.db-wal"]
    for name, content in files.items():
        for secret in everything.secrets:
            assert secret.encode() not in content, (name, secret)
            # Nor what is never shown of it; a code or a password has no such part.
            if secret.startswith("tg"):
                assert secret[8:].encode() not in content, (name, secret)


def test_mail_is_the_only_way_by_which_a_link_leaves(everything: Everything) -> None:
    """The search finds each text where it is allowed, so it would find it elsewhere too."""
    mailed = "".join(text for _, _, text in everything.harness.post.posted)
    links = [secret for secret in everything.secrets if secret.startswith(("tgi_", "tgl_"))]
    assert sum(link in mailed for link in links) == 6
