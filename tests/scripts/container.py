"""Checks an OCI archive as its specification has it, and unpacks its layer.

    container.py ARCHIVE FOLDER
"""
import hashlib
import json
import sys
import tarfile

archive, folder = sys.argv[1:]
with tarfile.open(archive) as tar:
    blobs = {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}
    assert all(entry.mtime == 0 and entry.uid == 0 for entry in tar)
assert json.loads(blobs.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
index = json.loads(blobs.pop("index.json"))
for name, data in blobs.items():
    assert name == "blobs/sha256/" + hashlib.sha256(data).hexdigest(), name


def follow(descriptor):
    data = blobs["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
    assert len(data) == descriptor["size"]
    return data


(reference,) = index["manifests"]
manifest = json.loads(follow(reference))
assert manifest["schemaVersion"] == 2 and manifest["mediaType"] == reference["mediaType"]
config = json.loads(follow(manifest["config"]))
(layer,) = manifest["layers"]
assert config["rootfs"]["diff_ids"] == [layer["digest"]], "the layer is not compressed"
assert len(blobs) == 3
user = config["config"]["User"].split(":")[0]
assert user.isdigit() and int(user) > 0, "root runs it"
assert config["config"]["Entrypoint"] == ["/usr/bin/openpi"]
with open(folder + ".tar", "wb") as file:
    file.write(follow(layer))
with tarfile.open(folder + ".tar") as tar:
    for entry in tar:
        assert not entry.name.startswith("/") and ".." not in entry.name and not entry.mode & 0o6000, entry.name
        assert entry.isfile() or entry.isdir()
        assert entry.uid in (0, int(user)) and (entry.uid == 0 or entry.name == "home/openpi"), entry.name
    tar.extractall(folder)
print(user)
