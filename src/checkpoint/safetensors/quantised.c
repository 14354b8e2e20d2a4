#include "checkpoint/safetensors/quantised.h"

#include <stdio.h>
#include <string.h>

#include "base/report.h"
#include "base/text.h"
#include "checkpoint/tensor_names.h"

/* A scheme is known by a tensor's name, or by its type. The first row that fits a tensor counts. */
static const struct {
    const char *piece;           /* piece of the name; NULL: any                                          */
    int tail;                    /* 1: the name ends with it                                              */
    const char *type;            /* the type begins with this; NULL: any                                  */
    const char *scheme;
} marks[] = {
    {".quant_state.bitsandbytes", 0, NULL, "bitsandbytes in 4 bits"},
    {".weight.absmax", 1, NULL, "bitsandbytes in 4 bits"},
    {".SCB", 1, NULL, "bitsandbytes in 8 bits"},
    {"_weight_qdata", 1, NULL, "torchao"},
    {".weight:qdata", 1, NULL, "torchao"},
    {".weight_qdata", 1, NULL, "torchao"},
    {".weight.tensor_impl", 0, NULL, "torchao"},
    {".weight.layout_tensor", 0, NULL, "torchao"},
    {".weight.int_data", 1, NULL, "torchao"},
    {"_weight_scale", 1, NULL, "torchao"},
    {".qweight", 1, "I32", "GPTQ or AWQ"},
    {".qzeros", 1, "I32", "GPTQ or AWQ"},
    {".weight_packed", 1, NULL, "compressed-tensors"},
    {NULL, 0, "F8_", "8-bit floats"},
    {".weight", 1, "I", "packed integers"},
    {".weight", 1, "U", "packed integers"},
};

static int fits(size_t mark, const char *name, const char *type) {
    const char *piece = marks[mark].piece, *at = piece ? strstr(name, piece) : name;
    if (!at || (marks[mark].type && strncmp(type, marks[mark].type, strlen(marks[mark].type)))) return 0;
    size_t length = strlen(name), end = piece ? strlen(piece) : 0;
    return !marks[mark].tail || (length > end && !strcmp(name + length - end, piece));
}

/* Nobody reads it: among them the embedding under its other name. */
static int is_unused(const json_t *header, const char *name) {
    size_t head = strlen(LM_HEAD), length = strlen(name);
    char embedding[300];
    if (tensor_is_unused(name)) return 1;
    if (!text_ends_with(name, LM_HEAD) || length - head + sizeof EMBED_TOKENS > sizeof embedding) return 0;
    snprintf(embedding, sizeof embedding, "%.*s" EMBED_TOKENS, (int)(length - head), name);
    return json_object_get(header, embedding) != NULL;
}

openpi_status quantised_refuse(const json_t *header, const char *file, openpi_error *error) {
    for (size_t mark = 0; mark < sizeof marks / sizeof *marks; mark++) {
        const char *name;
        json_t *entry;
        json_object_foreach((json_t *)(uintptr_t)header, name, entry) {
            const char *type = json_string_value(json_object_get(entry, "dtype"));
            if (!type || !fits(mark, name, type) || is_unused(header, name)) continue;
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: its weights are quantised with %s (tensor \"%s\" is of %s), expected F32, "
                          "BF16 or F16: give the checkpoint that it was made from",
                          file, marks[mark].scheme, name, type);
        }
    }
    return OPENPI_OK;
}
