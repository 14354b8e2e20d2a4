/* Reads safetensors files: one, or the shards that model.safetensors.index.json names.
 *
 * A file is 8 bytes of header length (little-endian), the header (a JSON object: name -> dtype, shape,
 * data_offsets), and the data. Nothing in it is believed: the tensors must lie in the data without
 * overlap, without a hole and to its last byte, so a file cut anywhere is refused. The data are read from
 * the file only when elements are needed. The format: github.com/huggingface/safetensors. */
#include "checkpoint/safetensors/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"
#include "checkpoint/safetensors/file_source.h"
#include "checkpoint/safetensors/quantised.h"
#include "checkpoint/safetensors/wrong_file.h"
#include "checkpoint/tensors_build.h"

enum { HEADER_LIMIT = 64 << 20, PREFIX_BYTES = 8 };

/* A tensor whose place in the data is not yet checked. */
typedef struct placed {
    tensor tensor;
    uint64_t begin, end;
} placed;

static int by_place(const void *a, const void *b) {
    const placed *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static openpi_status parse_dtype(const json_t *entry, const char *file, const char *name, dtype *out,
                                 openpi_error *error) {
    const json_t *value = json_object_get(entry, "dtype");
    const char *text = json_string_value(value);
    if (!text)
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\": dtype is %s, expected a string", file, name,
                      json_kind(value));
    for (int i = 0; i < DTYPES; i++)
        if (!strcmp(text, dtype_name((dtype)i))) {
            *out = (dtype)i;
            return OPENPI_OK;
        }
    return report(error, OPENPI_BAD_FILE,
                  "%s: tensor \"%s\": dtype is \"%s\", expected F32, BF16 or F16",
                  file, name, text);
}

static openpi_status parse_shape(const json_t *entry, const char *file, tensor *t, openpi_error *error) {
    const json_t *value = json_object_get(entry, "shape");
    if (!json_is_array(value))
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\": shape is %s, expected an array", file,
                      t->name, json_kind(value));
    size_t rank = json_array_size(value);
    if (rank > TENSOR_RANK)
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\": shape has %zu dimensions, expected at most %d", file, t->name, rank,
                      TENSOR_RANK);
    t->rank = (int)rank;
    t->count = 1;
    for (size_t i = 0; i < rank; i++) {
        const json_t *extent = json_array_get(value, i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return report(error, OPENPI_BAD_FILE,
                          "%s: tensor \"%s\": shape[%zu] is %s, expected an integer of at least 0", file,
                          t->name, i, json_is_integer(extent) ? "negative" : json_kind(extent));
        t->shape[i] = json_integer_value(extent);
        if (__builtin_mul_overflow(t->count, t->shape[i], &t->count) || t->count > INT64_MAX / 8)
            return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\": its shape has too many elements", file,
                          t->name);
    }
    return OPENPI_OK;
}

static openpi_status report_offsets(const char *file, const char *name, long long begin, long long end,
                                    uint64_t data_bytes, openpi_error *error) {
    return report(error, OPENPI_BAD_FILE,
                  "%s: tensor \"%s\": data_offsets are [%lld, %lld], expected ascending within the file's "
                  "%llu bytes of data",
                  file, name, begin, end, (unsigned long long)data_bytes);
}

/* check_places checks later, for all tensors together, that they end within the file's data. */
static openpi_status parse_place(const json_t *entry, const char *file, uint64_t data_bytes, placed *p,
                                 openpi_error *error) {
    const json_t *value = json_object_get(entry, "data_offsets");
    const char *name = p->tensor.name;
    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(json_array_get(value, 0)) ||
        !json_is_integer(json_array_get(value, 1)))
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\": data_offsets is %s, expected two integers",
                      file, name, json_is_array(value) ? "something else" : json_kind(value));
    json_int_t begin = json_integer_value(json_array_get(value, 0)),
               end = json_integer_value(json_array_get(value, 1));
    if (begin < 0 || end < begin) return report_offsets(file, name, begin, end, data_bytes, error);
    int64_t bytes = p->tensor.count * (int64_t)dtype_bytes(p->tensor.type);
    if (end - begin != bytes) {
        char shape[128];
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\": data_offsets hold %lld bytes, expected %lld for %s of %s", file,
                      name, (long long)(end - begin), (long long)bytes,
                      tensor_shape_text(p->tensor.rank, p->tensor.shape, shape, sizeof shape),
                      dtype_name(p->tensor.type));
    }
    p->begin = (uint64_t)begin;
    p->end = (uint64_t)end;
    return OPENPI_OK;
}

static openpi_status parse_tensor(const json_t *entry, const char *name, const char *file,
                                  uint64_t data_bytes, placed *p, openpi_error *error) {
    *p = (placed){.tensor = {.name = name, .file = file}};
    if (!json_is_object(entry))
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is %s, expected an object", file, name,
                      json_kind(entry));
    TRY(parse_dtype(entry, file, name, &p->tensor.type, error));
    TRY(parse_shape(entry, file, &p->tensor, error));
    return parse_place(entry, file, data_bytes, p, error);
}

/* The tensors in the order of their bytes; together they are exactly the data. */
static openpi_status check_places(placed *list, size_t count, const char *file, uint64_t data_bytes,
                                  openpi_error *error) {
    qsort(list, count, sizeof *list, by_place);
    const placed *last = count ? &list[count - 1] : NULL;
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (list[i].begin < at)
            return report(
                error, OPENPI_BAD_FILE,
                "%s: tensor \"%s\" begins at byte %llu of the data, inside of \"%s\", which ends at %llu",
                file, list[i].tensor.name, (unsigned long long)list[i].begin, list[i - 1].tensor.name,
                (unsigned long long)at);
        if (list[i].begin > at && last->end > data_bytes)
            return report_offsets(file, last->tensor.name, (long long)last->begin, (long long)last->end,
                                  data_bytes, error);
        if (list[i].begin > at)
            return report(error, OPENPI_BAD_FILE,
                          "%s: tensor \"%s\" begins at byte %llu of the data, expected %llu: no tensor has "
                          "the bytes between",
                          file, list[i].tensor.name, (unsigned long long)list[i].begin,
                          (unsigned long long)at);
        at = list[i].end;
    }
    if (at > data_bytes)
        return report(error, OPENPI_BAD_FILE,
                      "%s: cut short: %llu bytes are missing of the %llu that its tensors take: download or "
                      "copy it again",
                      file, (unsigned long long)(at - data_bytes), (unsigned long long)at);
    if (at < data_bytes)
        return report(error, OPENPI_BAD_FILE,
                      "%s: the tensors end at byte %llu of the data, expected its end at %llu", file,
                      (unsigned long long)at, (unsigned long long)data_bytes);
    return OPENPI_OK;
}

static openpi_status check_metadata(json_t *metadata, const char *file, openpi_error *error) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return report(error, OPENPI_BAD_FILE, "%s: __metadata__ is %s, expected an object", file,
                      json_kind(metadata));
    json_object_foreach(metadata, key, value) {
        if (json_is_string(value)) continue;
        return report(error, OPENPI_BAD_FILE, "%s: __metadata__ \"%s\" is %s, expected a string", file, key,
                      json_kind(value));
    }
    return OPENPI_OK;
}

/* header: an object. Its tensors join the list; data: where in the file they begin; list: has space for
 * all of them. */
static openpi_status add_tensors(tensors *tensors, json_t *header, file_source *stored, uint64_t data,
                                 uint64_t data_bytes, placed *list, openpi_error *error) {
    const char *name, *file = file_source_path(stored);
    json_t *entry;
    size_t count = 0;
    TRY(quantised_refuse(header, file, error));
    json_object_foreach(header, name, entry) {
        if (!strcmp(name, "__metadata__")) continue;
        TRY(parse_tensor(entry, name, file, data_bytes, &list[count++], error));
    }
    TRY(check_places(list, count, file, data_bytes, error));
    for (size_t i = 0; i < count; i++) {
        tensor *t = &list[i].tensor;
        file_source_set(stored, data + list[i].begin, t);
        TRY(tensors_add(tensors, t, error));
    }
    return OPENPI_OK;
}

static openpi_status read_header_text(const char *path, const file_reader *reader, size_t bytes,
                                      json_t **header, openpi_error *error) {
    char label[300], *text = malloc(bytes + 1);
    if (!text) return report_no_memory(error, bytes + 1, path);
    snprintf(label, sizeof label, "%.280s: header", path);
    openpi_status status = file_reader_read(reader, path, PREFIX_BYTES, bytes, text, error);
    if (status == OPENPI_OK) status = json_parse(text, bytes, label, header, error);
    free(text);
    return status;
}

static openpi_status parse_header(const char *path, const file_reader *reader, json_t **header,
                                  uint64_t *header_bytes, openpi_error *error) {
    uint8_t first[WRONG_FILE_BYTES];
    size_t known = reader->bytes < sizeof first ? (size_t)reader->bytes : sizeof first;
    uint64_t bytes = 0;
    TRY(file_reader_read(reader, path, 0, known, first, error));
    for (size_t i = 0; i < PREFIX_BYTES && i < known; i++) bytes |= (uint64_t)first[i] << 8 * i;
    if (known < PREFIX_BYTES || bytes > HEADER_LIMIT || bytes > reader->bytes - PREFIX_BYTES)
        return wrong_file(path, first, reader->bytes, HEADER_LIMIT, error);
    TRY(read_header_text(path, reader, (size_t)bytes, header, error));
    *header_bytes = bytes;
    if (json_is_object(*header)) return OPENPI_OK;
    openpi_status status =
        report(error, OPENPI_BAD_FILE, "%s: header is %s, expected an object", path, json_kind(*header));
    json_decref(*header);
    return status;
}

openpi_status safetensors_read(tensors *tensors, const char *path, openpi_error *error) {
    file_reader reader;
    json_t *header, *metadata;
    uint64_t header_bytes = 0;
    TRY(file_reader_open(path, &reader, error));
    openpi_status status = parse_header(path, &reader, &header, &header_bytes, error);
    if (status != OPENPI_OK) {
        file_reader_close(&reader);
        return status;
    }
    uint64_t data = PREFIX_BYTES + header_bytes;
    file_source *file;
    metadata = json_object_get(header, "__metadata__");
    if (metadata) status = check_metadata(metadata, path, error);
    if (status != OPENPI_OK) {
        file_reader_close(&reader);
        json_decref(header);
        return status;
    }
    size_t list_bytes = (json_object_size(header) + 1) * sizeof(placed);
    placed *list = NULL;
    status = file_source_add(tensors, path, reader, json_incref(metadata), &file, error);
    if (status == OPENPI_OK && !(list = malloc(list_bytes)))
        status = report_no_memory(error, list_bytes, path);
    if (status == OPENPI_OK)
        status = add_tensors(tensors, header, file, data, reader.bytes - data, list, error);
    free(list);
    json_decref(header);
    return status;
}

/* ---- shards ---- */

static openpi_status check_shard_name(const char *index, const char *name, const json_t *value,
                                      openpi_error *error) {
    const char *shard = json_string_value(value);
    if (!shard)
        return report(error, OPENPI_BAD_FILE, "%s: weight_map \"%s\" is %s, expected a file's name", index,
                      name, json_kind(value));
    if (!*shard || *shard == '.' || strpbrk(shard, "/\\"))
        return report(error, OPENPI_BAD_FILE,
                      "%s: weight_map \"%s\" is \"%s\", expected the name of a file in the same folder",
                      index, name, shard);
    return OPENPI_OK;
}

/* `seen`: the shards read so far, as an object's keys. */
static openpi_status read_shards(tensors *tensors, const char *folder, const char *index, json_t *map,
                                 json_t *seen, openpi_error *error) {
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value) {
        TRY(check_shard_name(index, name, value, error));
        const char *shard = json_string_value(value);
        if (json_object_get(seen, shard)) continue;
        char *path = file_join(folder, shard);
        if (!path) return report_no_memory(error, strlen(folder) + strlen(shard) + 2, index);
        int first = tensors_count(tensors);
        openpi_status status = json_object_set_new(seen, shard, json_true())
                                   ? report_no_memory(error, strlen(shard), index)
                                   : safetensors_read(tensors, path, error);
        free(path);
        TRY(status);
        for (int i = first; i < tensors_count(tensors); i++) {
            const tensor *t = tensors_at(tensors, i);
            const char *said = json_string_value(json_object_get(map, t->name));
            if (!said || strcmp(said, shard))
                return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is in %s, expected %s%s", index,
                              t->name, shard, said ? "in " : "in no file", said ? said : "");
        }
    }
    TRY(tensors_finish(tensors, error));
    json_object_foreach(map, name, value) {
        if (tensors_find(tensors, name)) continue;
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is not in %s, expected there", index, name,
                      json_string_value(value));
    }
    return OPENPI_OK;
}

openpi_status safetensors_read_shards(tensors *tensors, const char *folder, const char *index,
                                      openpi_error *error) {
    json_t *root;
    TRY(json_read(index, &root, error));
    json_t *map = json_object_get(root, "weight_map");
    json_t *seen = json_object();
    openpi_status status;
    if (!json_is_object(map))
        status =
            report(error, OPENPI_BAD_FILE, "%s: weight_map is %s, expected an object", index, json_kind(map));
    else if (!seen)
        status = report_no_memory(error, sizeof(void *), index);
    else
        status = read_shards(tensors, folder, index, map, seen, error);
    json_decref(seen);
    json_decref(root);
    return status;
}

openpi_status safetensors_open(const char *path, tensors **out, openpi_error *error) {
    tensors *tensors = tensors_create();
    if (!tensors) return report_no_memory(error, sizeof(void *), path);
    openpi_status status = safetensors_read(tensors, path, error);
    if (status == OPENPI_OK) status = tensors_finish(tensors, error);
    if (status == OPENPI_OK) *out = tensors;
    else tensors_close(tensors);
    return status;
}
