/* Numbers of MCAP's records (mcap.dev/spec). */
#ifndef RECORDING_MCAP_FORMAT_H
#define RECORDING_MCAP_FORMAT_H

enum {
    MCAP_HEADER = 0x01,
    MCAP_FOOTER = 0x02,
    MCAP_SCHEMA = 0x03,
    MCAP_CHANNEL = 0x04,
    MCAP_OP_MESSAGE = 0x05,
    MCAP_CHUNK = 0x06,
    MCAP_MESSAGE_INDEX = 0x07,
    MCAP_CHUNK_INDEX = 0x08,
    MCAP_STATISTICS = 0x0b,
    MCAP_OP_METADATA = 0x0c,
    MCAP_METADATA_INDEX = 0x0d,
    MCAP_SUMMARY_OFFSET = 0x0e,
    MCAP_DATA_END = 0x0f,
    MCAP_RECORD_HEAD = 9,        /* opcode, length in eight bytes                                          */
    MCAP_MAGIC_BYTES = 8,
    MCAP_CHANNELS = 65535,
};

static const unsigned char mcap_magic[MCAP_MAGIC_BYTES] = {0x89, 'M', 'C', 'A', 'P', '0', '\r', '\n'};

#endif
