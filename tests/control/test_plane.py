"""What the control plane may fetch, by its settings."""

from tollgate.control import plane
from tollgate.settings.model import PricingSettings, Settings, WhitelistSettings


def test_private_addresses_for_proofs_do_not_free_webhooks_nor_the_other_way() -> None:
    proofs = Settings(whitelist=WhitelistSettings(allow_private_addresses=True))
    webhooks = Settings(billing=PricingSettings(allow_private_webhooks=True))
    assert [plane._caller(each)._allow_private for each in (Settings(), proofs, webhooks)] == [False, False, True]
    assert plane._proofs(proofs)._fetcher._allow_private is True  # type: ignore[attr-defined]
    assert plane._proofs(webhooks)._fetcher._allow_private is False  # type: ignore[attr-defined]
