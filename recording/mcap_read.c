/* See mcap.h. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <zlib.h>

#include "bytes.h"
#include "fail.h"
#include "mcap.h"
#include "mcap_format.h"

enum { LONGEST = 1 << 30 };      /* a record; a longer one is refused                                      */

typedef struct one_channel {
    int number;
    char *topic, *encoding;
} one_channel;

struct mcap_reader {
    FILE *file;
    char path[1024];
    uint64_t at, size;           /* the next byte; of the file                                             */
    int ended, cut;
    byte_buffer record;                /* the one of the file that is read */
    span chunk;                  /* what is left of its records, where it is a chunk                       */
    one_channel *channels;
    int channel_count;
    byte_buffer texts;                 /* metadata that were given last */
    mcap_entry *entries;
};

static openpi_status bad(const mcap_reader *r, const char *what, openpi_error *error) {
    return fail(error, OPENPI_BAD_FILE, "%.300s: %s at byte %llu", r->path, what, (unsigned long long)r->at);
}

static openpi_status no_memory(openpi_error *error) {
    return fail(error, OPENPI_NO_MEMORY, "out of memory: a recording");
}

openpi_status mcap_open(const char *path, mcap_reader **out, openpi_error *error) {
    mcap_reader *r = calloc(1, sizeof *r);
    struct stat about;
    uint8_t magic[MCAP_MAGIC_BYTES];
    if (!r) return no_memory(error);
    snprintf(r->path, sizeof r->path, "%s", path);
    r->file = fopen(path, "rbe");
    openpi_status status = OPENPI_OK;
    if (!r->file || fstat(fileno(r->file), &about))
        status = fail(error, OPENPI_BAD_FILE, "%.300s: cannot be read: %s", path, strerror(errno));
    else if (!S_ISREG(about.st_mode))
        status = fail(error, OPENPI_BAD_FILE, "%.300s: is no regular file, expected a recording", path);
    else if (fread(magic, 1, sizeof magic, r->file) != sizeof magic ||
             memcmp(magic, mcap_magic, sizeof magic))
        status = fail(error, OPENPI_BAD_FILE, "%.300s: does not begin as an MCAP file does", path);
    if (status == OPENPI_OK) {
        r->size = (uint64_t)about.st_size;
        r->at = sizeof magic;
        *out = r;
    } else {
        mcap_reader_close(r);
    }
    return status;
}

void mcap_reader_close(mcap_reader *r) {
    if (!r) return;
    if (r->file) fclose(r->file);
    for (int i = 0; i < r->channel_count; i++) {
        free(r->channels[i].topic);
        free(r->channels[i].encoding);
    }
    free(r->channels);
    free(r->record.data);
    free(r->texts.data);
    free(r->entries);
    free(r);
}

int mcap_is_cut(const mcap_reader *r, uint64_t *at) {
    if (at) *at = r->at;
    return r->cut;
}

/* ---- records of the file ------------------------------------------------------------------------------ */

/* The next one's content into r->record. What is missing at the end of the file makes it a cut one. */
static openpi_status read_record(mcap_reader *r, int *opcode, openpi_error *error) {
    uint8_t head[MCAP_RECORD_HEAD];
    r->cut = fread(head, 1, sizeof head, r->file) != sizeof head;
    if (r->cut) return OPENPI_OK;
    span rest = {head, sizeof head, 0};
    *opcode = (int)take_number(&rest, 1);
    uint64_t length = take_u64(&rest), left = r->size - r->at - MCAP_RECORD_HEAD;
    r->cut = r->size < r->at + MCAP_RECORD_HEAD || length > left;
    if (r->cut) return OPENPI_OK;
    if (length > LONGEST) return bad(r, "a record of more than 1 GiB", error);
    r->record.count = 0;
    uint8_t *to = length ? bytes_room(&r->record, (size_t)length) : NULL;
    if (length && !to) return no_memory(error);
    r->cut = length && fread(to, 1, (size_t)length, r->file) != length;
    if (!r->cut) r->at += MCAP_RECORD_HEAD + length;
    return OPENPI_OK;
}

static char *copy_of(span text) {
    char *copy = text.bad ? NULL : malloc(text.left + 1);
    if (!copy) return NULL;
    if (text.left) memcpy(copy, text.at, text.left);
    copy[text.left] = 0;
    return copy;
}

static one_channel *find(const mcap_reader *r, int number) {
    for (int i = 0; i < r->channel_count; i++)
        if (r->channels[i].number == number) return &r->channels[i];
    return NULL;
}

/* The same channel may come again. */
static openpi_status add_channel(mcap_reader *r, span content, openpi_error *error) {
    int number = take_u16(&content);
    take_u16(&content);
    span topic = take_string(&content), encoding = take_string(&content);
    if (content.bad) return bad(r, "a broken Channel record", error);
    if (find(r, number)) return OPENPI_OK;
    one_channel *more = realloc(r->channels, (size_t)(r->channel_count + 1) * sizeof *more);
    if (!more) return no_memory(error);
    r->channels = more;
    one_channel *new = &more[r->channel_count++];
    *new = (one_channel){number, copy_of(topic), copy_of(encoding)};
    return new->topic && new->encoding ? OPENPI_OK : no_memory(error);
}

static openpi_status open_chunk(mcap_reader *r, span content, openpi_error *error) {
    take_bytes(&content, 16);
    uint64_t size = take_u64(&content);
    uint32_t sum = take_u32(&content);
    span compression = take_string(&content);
    uint64_t stored = take_u64(&content);
    if (content.bad || stored != content.left) return bad(r, "a broken Chunk record", error);
    if (compression.left)
        return fail(error, OPENPI_UNSUPPORTED,
                    "%.300s: has chunks compressed by %.*s, expected none: `mcap compress --compression "
                    "none` unpacks it", r->path,
                    (int)(compression.left < 20 ? compression.left : 20), (const char *)compression.at);
    if (size != stored) return bad(r, "a chunk of another size than it says", error);
    if (sum && sum != crc32_z(0, content.at, content.left))
        return bad(r, "a chunk whose bytes do not fit its checksum", error);
    r->chunk = content;
    return OPENPI_OK;
}

static openpi_status give_message(mcap_reader *r, span content, mcap_record *out, openpi_error *error) {
    int number = take_u16(&content);
    *out = (mcap_record){.kind = MCAP_MESSAGE};
    out->sequence = take_u32(&content);
    out->log_ns = take_u64(&content);
    out->publish_ns = take_u64(&content);
    if (content.bad) return bad(r, "a broken Message record", error);
    const one_channel *of = find(r, number);
    if (!of) return bad(r, "a message of a channel that no record before it names", error);
    out->topic = of->topic;
    out->encoding = of->encoding;
    out->data = content.at;
    out->count = content.left;
    return OPENPI_OK;
}

/* ---- metadata ----------------------------------------------------------------------------------------- */

/* A string is kept with a NUL; where it lies in r->texts, which may still move. */
static size_t keep(mcap_reader *r, span text) {
    size_t at = r->texts.count;
    put_bytes(&r->texts, text.at, text.left);
    put_number(&r->texts, 0, 1);
    return at;
}

static int count_entries(span table) {
    int count = 0;
    for (; table.left && !table.bad; count++) {
        take_string(&table);
        take_string(&table);
    }
    return table.bad ? -1 : count;
}

static openpi_status give_metadata(mcap_reader *r, span content, mcap_record *out, openpi_error *error) {
    span name = take_string(&content), table = take_span(&content, take_u32(&content));
    int count = content.bad ? -1 : count_entries(table);
    if (count < 0) return bad(r, "a broken Metadata record", error);
    mcap_entry *entries = realloc(r->entries, ((size_t)count + 1) * sizeof *entries);
    size_t *places = malloc(2 * ((size_t)count + 1) * sizeof *places);
    if (entries) r->entries = entries;
    r->texts.count = 0;
    keep(r, name);
    for (int i = 0; places && i < 2 * count; i++) places[i] = keep(r, take_string(&table));
    int whole = entries && places && !r->texts.failed;
    const char *texts = (const char *)r->texts.data;
    for (int i = 0; whole && i < count; i++)
        entries[i] = (mcap_entry){texts + places[2 * i], texts + places[2 * i + 1]};
    free(places);
    if (!whole) return no_memory(error);
    *out = (mcap_record){.kind = MCAP_METADATA, .name = texts, .entries = entries, .entry_count = count};
    return OPENPI_OK;
}

/* ---- what comes next ---------------------------------------------------------------------------------- */

/* A record of the file or of a chunk. What is for the caller sets out->kind. */
static openpi_status take_record(mcap_reader *r, int opcode, span content, mcap_record *out,
                                 openpi_error *error) {
    switch (opcode) {
    case MCAP_CHANNEL: return add_channel(r, content, error);
    case MCAP_OP_MESSAGE: return give_message(r, content, out, error);
    case MCAP_OP_METADATA: return give_metadata(r, content, out, error);
    default: return OPENPI_OK;
    }
}

static openpi_status next_of_chunk(mcap_reader *r, mcap_record *out, openpi_error *error) {
    int opcode = (int)take_number(&r->chunk, 1);
    span content = take_span(&r->chunk, (size_t)take_u64(&r->chunk));
    if (r->chunk.bad) return bad(r, "a chunk with a broken record before its end", error);
    return take_record(r, opcode, content, out, error);
}

static openpi_status next_of_file(mcap_reader *r, mcap_record *out, openpi_error *error) {
    int opcode = 0;
    openpi_status status = read_record(r, &opcode, error);
    r->ended = r->cut || opcode == MCAP_DATA_END || opcode == MCAP_FOOTER;
    if (status != OPENPI_OK || r->ended) return status;
    span content = {r->record.data, r->record.count, 0};
    if (opcode == MCAP_CHUNK) return open_chunk(r, content, error);
    return take_record(r, opcode, content, out, error);
}

openpi_status mcap_next(mcap_reader *r, mcap_record *out, openpi_error *error) {
    openpi_status status = OPENPI_OK;
    *out = (mcap_record){.kind = MCAP_END};
    while (status == OPENPI_OK && out->kind == MCAP_END && (r->chunk.left || !r->ended))
        status = r->chunk.left ? next_of_chunk(r, out, error) : next_of_file(r, out, error);
    if (status != OPENPI_OK) {
        r->chunk = (span){.at = NULL};
        r->ended = 1;
    }
    return status;
}
