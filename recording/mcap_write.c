/* See mcap.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <zlib.h>

#include "bytes.h"
#include "fail.h"
#include "mcap.h"
#include "mcap_format.h"

/* A channel, and where its messages of the next chunk lie. */
typedef struct one_channel {
    uint64_t messages;           /* all of the file                                                        */
    byte_buffer index;                 /* time and offset of each of the next chunk */
    uint64_t index_at;           /* where the last chunk's index lies in the file                          */
} one_channel;

struct mcap_writer {
    int file;
    char path[1024];
    int failed;                  /* 1: what the file ends with is not known                                */
    uint64_t written;
    byte_buffer announced;             /* Schema and Channel records, all: the summary has them again */
    size_t announced_written;    /* those that stand before a chunk                                        */
    byte_buffer chunk;                 /* Message records of the next one */
    uint64_t first_ns, last_ns;  /* the next chunk's                                                       */
    byte_buffer chunk_indexes, metadata_indexes;         /* records for the summary */
    one_channel *channels;           /* [channel_count], of numbers 1 … */
    int channel_count, schema_count;
    uint64_t messages, chunks, metadata, begin_ns, end_ns;
};

static openpi_status fail_write(mcap_writer *w, int number, openpi_error *error) {
    openpi_status status = number == ENOMEM ? OPENPI_NO_MEMORY : OPENPI_SYSTEM;
    w->failed = 1;
    return fail(error, status, "%.400s: the recording cannot be written: %s", w->path, strerror(number));
}

static openpi_status write_all(mcap_writer *w, const byte_buffer *b, openpi_error *error) {
    if (b->failed) return fail_write(w, ENOMEM, error);
    for (size_t done = 0; done < b->count;) {
        ssize_t count = write(w->file, b->data + done, b->count - done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return fail_write(w, count ? errno : ENOSPC, error);
        done += (size_t)count;
        w->written += (uint64_t)count;
    }
    return OPENPI_OK;
}

/* A record begins: returns where its length goes, for end_record. */
static size_t begin_record(byte_buffer *b, int opcode) {
    put_number(b, (uint64_t)opcode, 1);
    size_t at = b->count;
    put_u64(b, 0);
    return at;
}

static void end_record(byte_buffer *b, size_t at) { set_number(b, at, b->count - at - 8, 8); }

/* A table whose length in bytes stands before it in four bytes. */
static size_t begin_table(byte_buffer *b) {
    put_u32(b, 0);
    return b->count;
}

static void end_table(byte_buffer *b, size_t at) { set_number(b, at - 4, b->count - at, 4); }

openpi_status mcap_create(const char *path, const char *profile, const char *library, mcap_writer **out,
                          openpi_error *error) {
    mcap_writer *w = calloc(1, sizeof *w);
    byte_buffer head = {.data = NULL};
    mcap_writer unmade = {.file = -1};
    snprintf(w ? w->path : unmade.path, sizeof unmade.path, "%s", path);
    if (!w) return fail_write(&unmade, ENOMEM, error);
    w->file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
    put_bytes(&head, mcap_magic, sizeof mcap_magic);
    size_t at = begin_record(&head, MCAP_HEADER);
    put_string(&head, profile);
    put_string(&head, library);
    end_record(&head, at);
    openpi_status status = w->file < 0 ? fail_write(w, errno, error) : write_all(w, &head, error);
    free(head.data);
    if (status == OPENPI_OK) *out = w;
    else mcap_close(w, NULL);
    return status;
}

int mcap_add_schema(mcap_writer *w, const char *name, const char *encoding, const char *text) {
    if (w->schema_count == MCAP_CHANNELS) return 0;
    size_t at = begin_record(&w->announced, MCAP_SCHEMA);
    put_u16(&w->announced, (uint16_t)++w->schema_count);
    put_string(&w->announced, name);
    put_string(&w->announced, encoding);
    put_string(&w->announced, text);
    end_record(&w->announced, at);
    return w->announced.failed ? 0 : w->schema_count;
}

int mcap_add_channel(mcap_writer *w, int schema, const char *topic, const char *encoding) {
    if (w->channel_count == MCAP_CHANNELS) return 0;
    one_channel *more = realloc(w->channels, (size_t)(w->channel_count + 1) * sizeof *more);
    if (!more) return 0;
    w->channels = more;
    more[w->channel_count++] = (one_channel){.messages = 0};
    size_t at = begin_record(&w->announced, MCAP_CHANNEL);
    put_u16(&w->announced, (uint16_t)w->channel_count);
    put_u16(&w->announced, (uint16_t)schema);
    put_string(&w->announced, topic);
    put_string(&w->announced, encoding);
    put_u32(&w->announced, 0);             /* no metadata of the channel */
    end_record(&w->announced, at);
    return w->announced.failed ? 0 : w->channel_count;
}

void mcap_put(mcap_writer *w, int channel, uint32_t sequence, uint64_t log_ns, uint64_t publish_ns,
              const mcap_part *parts, int count) {
    byte_buffer *index = &w->channels[channel - 1].index;
    put_u64(index, log_ns);
    put_u64(index, w->chunk.count);
    if (!w->chunk.count || log_ns < w->first_ns) w->first_ns = log_ns;
    if (!w->chunk.count || log_ns > w->last_ns) w->last_ns = log_ns;
    size_t at = begin_record(&w->chunk, MCAP_OP_MESSAGE);
    put_u16(&w->chunk, (uint16_t)channel);
    put_u32(&w->chunk, sequence);
    put_u64(&w->chunk, log_ns);
    put_u64(&w->chunk, publish_ns);
    for (int i = 0; i < count; i++) put_bytes(&w->chunk, parts[i].data, parts[i].count);
    end_record(&w->chunk, at);
    w->channels[channel - 1].messages++;
    w->messages++;
}

/* ---- a chunk ------------------------------------------------------------------------------------------ */

/* Everything of a Chunk record before its records. */
static void put_chunk_head(byte_buffer *out, const mcap_writer *w) {
    static const char compression[] = "";
    uint32_t sum = (uint32_t)crc32_z(0, w->chunk.data, w->chunk.count);
    put_number(out, MCAP_CHUNK, 1);
    put_u64(out, 8 + 8 + 8 + 4 + (4 + sizeof compression - 1) + 8 + w->chunk.count);
    put_u64(out, w->first_ns);
    put_u64(out, w->last_ns);
    put_u64(out, w->chunk.count);
    put_u32(out, sum);
    put_string(out, compression);
    put_u64(out, w->chunk.count);
}

/* Message Index records of the chunk, which stand behind it, from byte `begin` of the file on. */
static void put_message_indexes(byte_buffer *out, mcap_writer *w, uint64_t begin) {
    for (int i = 0; i < w->channel_count; i++) {
        byte_buffer *index = &w->channels[i].index;
        if (!index->count) continue;
        w->channels[i].index_at = begin + out->count;
        size_t at = begin_record(out, MCAP_MESSAGE_INDEX);
        put_u16(out, (uint16_t)(i + 1));
        size_t table = begin_table(out);
        put_bytes(out, index->data, index->count);
        end_table(out, table);
        end_record(out, at);
        out->failed |= index->failed;
    }
}

static void put_chunk_index(mcap_writer *w, uint64_t begin, uint64_t chunk_bytes, uint64_t indexes_bytes) {
    byte_buffer *out = &w->chunk_indexes;
    size_t at = begin_record(out, MCAP_CHUNK_INDEX);
    put_u64(out, w->first_ns);
    put_u64(out, w->last_ns);
    put_u64(out, begin);
    put_u64(out, chunk_bytes);
    size_t table = begin_table(out);
    for (int i = 0; i < w->channel_count; i++) {
        if (!w->channels[i].index.count) continue;
        put_u16(out, (uint16_t)(i + 1));
        put_u64(out, w->channels[i].index_at);
    }
    end_table(out, table);
    put_u64(out, indexes_bytes);
    put_string(out, "");
    put_u64(out, w->chunk.count);
    put_u64(out, w->chunk.count);
    end_record(out, at);
}

/* New schemas and channels, the chunk's head, the chunk itself, its indexes. */
static openpi_status write_chunk(mcap_writer *w, openpi_error *error) {
    byte_buffer head = {.data = NULL}, tail = {.data = NULL};
    put_bytes(&head, w->announced.data + w->announced_written, w->announced.count - w->announced_written);
    uint64_t begin = w->written + head.count;
    size_t announced = head.count;
    put_chunk_head(&head, w);
    head.failed |= w->announced.failed;
    uint64_t chunk_bytes = head.count - announced + w->chunk.count;
    put_message_indexes(&tail, w, begin + chunk_bytes);
    put_chunk_index(w, begin, chunk_bytes, tail.count);
    openpi_status status = w->chunk.failed ? fail_write(w, ENOMEM, error) : write_all(w, &head, error);
    if (status == OPENPI_OK) status = write_all(w, &w->chunk, error);
    if (status == OPENPI_OK) status = write_all(w, &tail, error);
    free(head.data);
    free(tail.data);
    return status;
}

openpi_status mcap_flush(mcap_writer *w, openpi_error *error) {
    if (w->failed) return fail_write(w, EIO, error);
    if (!w->chunk.count && !w->chunk.failed) return OPENPI_OK;
    openpi_status status = write_chunk(w, error);
    if (!w->chunks || w->first_ns < w->begin_ns) w->begin_ns = w->first_ns;
    if (!w->chunks || w->last_ns > w->end_ns) w->end_ns = w->last_ns;
    w->chunks++;
    w->announced_written = w->announced.count;
    w->chunk.count = 0;
    for (int i = 0; i < w->channel_count; i++) w->channels[i].index.count = 0;
    return status;
}

openpi_status mcap_put_metadata(mcap_writer *w, const char *name, const mcap_entry *entries, int count,
                                openpi_error *error) {
    byte_buffer record = {.data = NULL};
    size_t at = begin_record(&record, MCAP_OP_METADATA);
    put_string(&record, name);
    size_t table = begin_table(&record);
    for (int i = 0; i < count; i++) {
        put_string(&record, entries[i].key);
        put_string(&record, entries[i].value);
    }
    end_table(&record, table);
    end_record(&record, at);
    at = begin_record(&w->metadata_indexes, MCAP_METADATA_INDEX);
    put_u64(&w->metadata_indexes, w->written);
    put_u64(&w->metadata_indexes, record.count);
    put_string(&w->metadata_indexes, name);
    end_record(&w->metadata_indexes, at);
    w->metadata++;
    openpi_status status = w->failed ? fail_write(w, EIO, error) : write_all(w, &record, error);
    free(record.data);
    return status;
}

uint64_t mcap_written(const mcap_writer *w) { return w->written; }

/* ---- the end ------------------------------------------------------------------------------------------ */

static void put_statistics(byte_buffer *out, const mcap_writer *w) {
    size_t at = begin_record(out, MCAP_STATISTICS);
    put_u64(out, w->messages);
    put_u16(out, (uint16_t)w->schema_count);
    put_u32(out, (uint32_t)w->channel_count);
    put_u32(out, 0);
    put_u32(out, (uint32_t)w->metadata);
    put_u32(out, (uint32_t)w->chunks);
    put_u64(out, w->begin_ns);
    put_u64(out, w->end_ns);
    size_t table = begin_table(out);
    for (int i = 0; i < w->channel_count; i++) {
        put_u16(out, (uint16_t)(i + 1));
        put_u64(out, w->channels[i].messages);
    }
    end_table(out, table);
    end_record(out, at);
}

/* Records of one kind lie together from `from` on in the summary, which begins at `summary`. */
static void put_offset(byte_buffer *offsets, int opcode, uint64_t summary, size_t from, size_t to) {
    if (from == to) return;
    size_t at = begin_record(offsets, MCAP_SUMMARY_OFFSET);
    put_number(offsets, (uint64_t)opcode, 1);
    put_u64(offsets, summary + from);
    put_u64(offsets, to - from);
    end_record(offsets, at);
}

/* Schemas and channels stand in the order in which they were added, so they have no offset: readers that
 * want one read all. */
static void put_summary(byte_buffer *out, const mcap_writer *w, uint64_t summary) {
    byte_buffer offsets = {.data = NULL};
    size_t begin = out->count;             /* Data End stands before the summary */
    put_bytes(out, w->announced.data, w->announced.count);
    size_t statistics = out->count - begin;
    put_statistics(out, w);
    size_t chunks = out->count - begin;
    put_bytes(out, w->chunk_indexes.data, w->chunk_indexes.count);
    size_t metadata = out->count - begin;
    put_bytes(out, w->metadata_indexes.data, w->metadata_indexes.count);
    size_t end = out->count - begin;
    put_offset(&offsets, MCAP_STATISTICS, summary, statistics, chunks);
    put_offset(&offsets, MCAP_CHUNK_INDEX, summary, chunks, metadata);
    put_offset(&offsets, MCAP_METADATA_INDEX, summary, metadata, end);
    put_bytes(out, offsets.data, offsets.count);
    out->failed |= offsets.failed | w->announced.failed;
    out->failed |= w->chunk_indexes.failed | w->metadata_indexes.failed;
    put_number(out, MCAP_FOOTER, 1);
    put_u64(out, 8 + 8 + 4);
    put_u64(out, summary);
    put_u64(out, summary + end);
    uint32_t sum = out->failed ? 0 : (uint32_t)crc32_z(0, out->data + begin, out->count - begin);
    put_u32(out, sum);
    put_bytes(out, mcap_magic, sizeof mcap_magic);
    free(offsets.data);
}

static openpi_status write_end(mcap_writer *w, openpi_error *error) {
    byte_buffer end = {.data = NULL};
    size_t at = begin_record(&end, MCAP_DATA_END);
    put_u32(&end, 0);                      /* no sum over all data: chunks have theirs */
    end_record(&end, at);
    put_summary(&end, w, w->written + end.count);
    openpi_status status = write_all(w, &end, error);
    free(end.data);
    return status;
}

openpi_status mcap_close(mcap_writer *w, openpi_error *error) {
    if (!w) return OPENPI_OK;
    openpi_status status = w->failed ? OPENPI_OK : mcap_flush(w, error);
    if (!w->failed) status = write_end(w, error);
    if (w->file >= 0 && close(w->file) && status == OPENPI_OK) status = fail_write(w, errno, error);
    for (int i = 0; i < w->channel_count; i++) free(w->channels[i].index.data);
    free(w->channels);
    free(w->announced.data);
    free(w->chunk.data);
    free(w->chunk_indexes.data);
    free(w->metadata_indexes.data);
    free(w);
    return status;
}
