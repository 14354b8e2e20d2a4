"""Reads a recording of `openpi serve --record` with the packages mcap and mcap-ros2-support. Prints what it found; its test
compares."""
import json
import sys

from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory

counts, shapes, calls = {}, set(), []
with open(sys.argv[1], "rb") as file:
    reader = make_reader(file, decoder_factories=[DecoderFactory()], validate_crcs=True)
    about = {entry.name: entry.metadata for entry in reader.iter_metadata()}
    statistics = reader.get_summary().statistics
    for schema, channel, message in reader.iter_messages():
        counts[channel.topic] = counts.get(channel.topic, 0) + 1
        if channel.message_encoding == "cdr":
            picture = DecoderFactory().decoder_for("cdr", schema)(message.data)
            assert channel.topic == "/camera/" + picture.header.frame_id
            if schema.name == "sensor_msgs/msg/Image":
                assert len(picture.data) == picture.height * picture.step == picture.height * picture.width * 3
                shapes.add((picture.encoding, picture.height, picture.width))
            else:
                shapes.add((picture.format,))
        elif channel.message_encoding == "json":
            calls.append(json.loads(message.data))
assert statistics.message_count == sum(counts.values())
assert about["openpi.Model"]["seed"] == "5", about
assert all(len(row) == 8 for call in calls for row in call["actions"]), calls[0]
assert [call["order"] for call in calls] == sorted(call["order"] for call in calls)
print(sorted(counts.items()), sorted(shapes))
