/* MCAP, the container of Foxglove and ROS 2 (mcap.dev/spec): as much of it as recordings need. A file is
 *
 *   magic, Header, (Schema, Channel, Metadata, Chunk with Message Indexes)*, Data End,
 *   Schemas, Channels, Statistics, Chunk Indexes, Metadata Indexes, Summary Offsets, Footer, magic
 *
 * Chunks are not compressed and have a CRC-32. A file that was not closed (power was lost, the disk is full)
 * lacks all from Data End on and perhaps the end of its last chunk; readers, this one among them, give its
 * whole chunks. */
#ifndef RECORDING_MCAP_H
#define RECORDING_MCAP_H

#include <stddef.h>
#include <stdint.h>

#include "openpi.h"

/* ---- writing: one thread at a time -------------------------------------------------------------------- */

typedef struct mcap_writer mcap_writer;

/* A new file; one that exists is an error. `profile`: the vocabulary of channels, "ros2" or "". */
openpi_status mcap_create(const char *path, const char *profile, const char *library, mcap_writer **out,
                          openpi_error *error);

/* Numbers of a schema and of a channel, from 1 on; 0: no memory, or there are 65,535. schema 0: none. They
 * are written with the next chunk. */
int mcap_add_schema(mcap_writer *writer, const char *name, const char *encoding, const char *text);
int mcap_add_channel(mcap_writer *writer, int schema, const char *topic, const char *encoding);

typedef struct mcap_part {
    const void *data;
    size_t count;
} mcap_part;

/* Appends a message to the chunk that mcap_flush writes: its data are the parts, copied. Times in ns since
 * 1970. */
void mcap_put(mcap_writer *writer, int channel, uint32_t sequence, uint64_t log_ns, uint64_t publish_ns,
              const mcap_part *parts, int count);
/* Writes the chunk; without a message nothing happens. After an error the writer takes no more: close it. */
openpi_status mcap_flush(mcap_writer *writer, openpi_error *error);

typedef struct mcap_entry {
    const char *key, *value;
} mcap_entry;

openpi_status mcap_put_metadata(mcap_writer *writer, const char *name, const mcap_entry *entries, int count,
                                openpi_error *error);

/* Bytes written so far, those of the next chunk not among them. */
uint64_t mcap_written(const mcap_writer *writer);

/* Writes the end of the file and closes it. The writer is gone, also after an error. NULL: nothing. */
openpi_status mcap_close(mcap_writer *writer, openpi_error *error);

/* ---- reading ------------------------------------------------------------------------------------------ */

typedef struct mcap_reader mcap_reader;

openpi_status mcap_open(const char *path, mcap_reader **out, openpi_error *error);
void mcap_reader_close(mcap_reader *reader);

typedef enum mcap_kind { MCAP_END, MCAP_MESSAGE, MCAP_METADATA } mcap_kind;

/* What came next. Texts and data are the reader's, until the next call. */
typedef struct mcap_record {
    mcap_kind kind;
    const char *topic, *encoding;          /* MCAP_MESSAGE: its channel's */
    uint32_t sequence;
    uint64_t log_ns, publish_ns;
    const uint8_t *data;         /* MCAP_MESSAGE: [count]                                                  */
    size_t count;
    const char *name;            /* MCAP_METADATA                                                          */
    const mcap_entry *entries;   /* MCAP_METADATA: [entry_count]                                           */
    int entry_count;
} mcap_record;

/* Messages and metadata in the order of the file. What MCAP allows and this reader does not know is an error
 * (a compressed chunk) or passed over (attachments). OPENPI_BAD_FILE names the file and the byte. */
openpi_status mcap_next(mcap_reader *reader, mcap_record *out, openpi_error *error);

/* 1, after MCAP_END: the file was not closed; what is missing is the end, from this byte on. */
int mcap_is_cut(const mcap_reader *reader, uint64_t *at);

#endif
