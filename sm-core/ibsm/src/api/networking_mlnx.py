"""Drives networking-mlnx-baremetal's client of UFM: URL, user and password are the arguments."""

import sys

from networking_mlnx_baremetal.ufmclient import exceptions
from networking_mlnx_baremetal.ufmclient.client import UfmClient

url, user, password = sys.argv[1:]
pkeys = UfmClient(url, user, password, verify_ca=False).pkey

CLIENT_ID = "ff:00:00:00:00:00:02:00:00:02:c9:00:7c:fe:90:03:00:29:26:52"
PLAIN, OF_CLIENT_ID = "0002c903000e0b72", "7cfe900300292652"


def members(pkey):
    return {row["guid"]: row["membership"] for row in pkeys.get(pkey, with_guid=True)["guids"]}


pkeys.add_guids("0x5", [PLAIN], index0=True)
pkeys.add_guids("0x5", [CLIENT_ID], full_membership=False)
assert members("0x5") == {PLAIN: "full", OF_CLIENT_ID: "limited"}, members("0x5")
assert "0x5" in pkeys.list(with_guid=True) and "0x5" in pkeys.list()
pkeys.update("0x5", [PLAIN], full_membership=False)
assert members("0x5") == {PLAIN: "limited"}, members("0x5")
pkeys.remove_guids("0x5", [PLAIN, CLIENT_ID])
try:
    pkeys.get("0x5")
    raise AssertionError("the partition goes with its last member")
except exceptions.ResourceNotFoundError:
    pass
pkeys.add_guids("0x6", [PLAIN])
pkeys.delete("0x6")
assert "0x6" not in pkeys.list()
print("done")
