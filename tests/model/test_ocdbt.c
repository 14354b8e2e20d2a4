/* Hostile OCDBT databases: each row changes one number or name of a small database that is fine, with its
 * CRC-32C right, and is refused with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/jax/ocdbt.h"
#include "ocdbt_write.h"
#include "policy_golden.h"
#include "scratch.h"

/* A manifest, a root of height 1 and a leaf with the values "ka" and "kab". Numbers are added to what is
 * right. */
typedef struct recipe {
    const char *path, *key, *child_key;  /* the data file ("d/n"), the leaf's first key ("a"), the root's   */
    uint64_t kind, base, file, offset, length, keys, versions;              /* manifest                     */
    int height, leaf_height;
    uint64_t common, child_file, child_offset, child_length, child_keys;    /* root                         */
    uint64_t entries, prefix, suffix, value_length, value_kind, value_file; /* leaf                         */
    int tail, endless, zero;     /* a byte after the leaf; a count of 10 bytes; a zero byte in a key        */
    const char *piece;           /* piece of the sentence; NULL: it opens                                   */
} recipe;

static void put_leaf(const recipe *r, bytes *b) {
    const char *key = r->key ? r->key : "a";
    put_fixed(b, (uint64_t)r->leaf_height, 1);
    put_varint(b, 0);                                       /* files: none */
    if (r->endless) put(b, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 10);
    else put_varint(b, 2 + r->entries);
    put_varint(b, 1 + r->prefix);
    put_varint(b, strlen(key)), put_varint(b, 1 + r->suffix);
    put_text(b, key), put(b, r->zero ? "" : "b", 1);
    put_varint(b, 5), put_varint(b, 3 + r->value_length);
    put_varint(b, 0), put_varint(b, r->value_kind);
    if (r->value_kind == 1) put_varint(b, r->value_file), put_varint(b, 0);
    put_text(b, "first");
    if (r->value_kind != 1) put_text(b, "two");
    if (r->tail) put_fixed(b, 0, 1);
}

static void put_root(const recipe *r, uint64_t leaf, bytes *b) {
    const char *key = r->child_key ? r->child_key : "k";
    put_fixed(b, (uint64_t)(1 + r->height), 1);
    put_varint(b, 1), put_varint(b, 3), put_varint(b, 0), put_text(b, "d/n");
    put_varint(b, 1);
    put_varint(b, strlen(key)), put_varint(b, 1 + r->common), put_text(b, key);
    put_varint(b, r->child_file), put_varint(b, r->child_offset), put_varint(b, leaf + r->child_length);
    put_varint(b, 2 + r->child_keys), put_varint(b, 0), put_varint(b, 0);
}

static void put_manifest(const recipe *r, uint64_t offset, uint64_t length, bytes *b) {
    const char *path = r->path ? r->path : "d/n";
    put(b, "0123456789abcdef", 16);
    put_varint(b, r->kind), put_varint(b, 100), put_varint(b, 100000000);
    put_fixed(b, 4, 1), put_varint(b, 0);
    put_varint(b, 1), put_varint(b, strlen(path)), put_varint(b, r->base), put_text(b, path);
    put_varint(b, 1 + r->versions), put_varint(b, 1), put_fixed(b, (uint64_t)(1 + r->height), 1);
    put_varint(b, r->file), put_varint(b, offset + r->offset), put_varint(b, length + r->length);
    put_varint(b, 2 + r->keys), put_varint(b, 0), put_varint(b, 0), put_fixed(b, 7, 8);
    put_varint(b, 0);
}

static void write_blocks(scratch *s, const bytes *nodes, const bytes *manifest) {
    bytes whole = {0};
    assert_int_equal(mkdir(scratch_path(s, "d"), 0777), 0);
    assert_int_equal(scratch_write(s, "d/n", nodes->at, nodes->count), 0);
    ocdbt_block(&whole, OCDBT_MANIFEST, 0, manifest);
    assert_int_equal(scratch_write(s, "manifest.ocdbt", whole.at, whole.count), 0);
    free(whole.at);
}

static void write_recipe(const recipe *r, scratch *s) {
    bytes leaf = {0}, root = {0}, manifest = {0}, nodes = {0};
    put_leaf(r, &leaf);
    ocdbt_block(&nodes, OCDBT_NODE, 0, &leaf);
    size_t first = nodes.count;
    put_root(r, first, &root);
    ocdbt_block(&nodes, OCDBT_NODE, 0, &root);
    put_manifest(r, first, nodes.count - first, &manifest);
    write_blocks(s, &nodes, &manifest);
    free(leaf.at), free(root.at), free(manifest.at), free(nodes.at);
}

static char long_key[1200], full_key[1025];

static const recipe recipes[] = {
    {.piece = NULL},
    {.path = "../n", .piece = "names the file \"../n\", expected one below its folder"},
    {.path = "d/../../n", .piece = "names the file \"d/../../n\", expected one below"},
    {.path = "d/..", .piece = "names the file \"d/..\", expected one below"},
    {.path = "/etc/passwd", .piece = "names the file \"/etc/passwd\", expected one below"},
    {.base = 9, .piece = "a file's base is longer than its path"},
    {.base = UINT64_MAX, .piece = "a file's base is longer than its path"},
    {.kind = 1, .piece = "numbered manifests, expected a single one: restore the checkpoint with Orbax"},
    {.versions = 1 << 30, .piece = "it has no version"},
    {.versions = UINT64_MAX, .piece = "it has no version"},
    {.file = 1, .piece = "its tree lies in a file that is not in its table"},
    {.offset = 1 << 20, .piece = "expected 18 to 134217728 bytes within the file's"},
    {.offset = UINT64_MAX / 2, .piece = "expected 18 to 134217728 bytes within the file's"},
    {.length = UINT64_MAX / 2, .piece = "expected 18 to 134217728 bytes within the file's"},
    {.length = 1, .piece = "expected 18 to 134217728 bytes within the file's"},
    {.length = UINT64_MAX, .piece = "says that it has"},
    {.keys = 1, .piece = "leads to 2 keys, expected 3"},
    {.height = 16, .piece = "its tree is 17 nodes high, expected at most 16"},
    {.height = 1, .piece = "has height 0, expected 1"},
    {.leaf_height = 1, .piece = "has height 1, expected 0"},
    {.common = 1, .piece = "a child's key prefix is longer than its key"},
    {.common = UINT64_MAX, .child_keys = 0, .piece = NULL},
    {.common = UINT64_MAX / 2, .piece = "a child's key prefix is longer than its key"},
    {.child_file = 1, .piece = "a child lies in a file that is not in its table"},
    {.child_offset = UINT64_MAX, .piece = "within the file's"},
    {.child_length = UINT64_MAX - 90, .piece = "within the file's"},
    {.child_keys = 1, .piece = "leads to 2 keys, expected 3"},
    {.entries = 100000, .piece = "it has no entries"},
    {.entries = UINT64_MAX - 1, .piece = "it has no entries"},
    {.entries = UINT64_MAX - 2, .piece = "it has no entries"},
    {.endless = 1, .piece = "it has no entries"},
    {.prefix = 1, .piece = "the lengths of its names do not fit"},
    {.prefix = UINT64_MAX - 1, .piece = "the lengths of its names do not fit"},
    {.suffix = 1000, .piece = "the lengths of its names do not fit"},
    {.suffix = UINT64_MAX - 2, .piece = "the lengths of its names do not fit"},
    {.key = long_key, .piece = "the lengths of its names do not fit"},
    {.key = full_key, .piece = "the lengths of its names do not fit"},          /* with the root's "k" */
    {.key = "ac", .piece = "key \"kab\" follows \"kac\", expected ascending keys"},
    {.key = "b", .prefix = UINT64_MAX, .piece = "expected ascending keys"},     /* "kb" "kb" */
    {.key = "c", .prefix = UINT64_MAX, .piece = "key \"kb\" follows \"kc\", expected ascending keys"},
    {.zero = 1, .piece = "a name holds a zero byte"},
    {.value_length = 1, .piece = "a value in it is cut short"},
    {.value_length = UINT64_MAX - 3, .piece = "a value in it is cut short"},
    {.value_kind = 2, .piece = "a value is neither in the node nor in a file"},
    {.value_kind = 1, .piece = "a value lies in a file that is not in its table"},
    {.tail = 1, .piece = "bytes follow its last value"},
};

static void test_recipes(void **state) {
    (void)state;
    memset(long_key, 'x', sizeof long_key - 1);
    memset(full_key, 'x', sizeof full_key - 1);
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        scratch s;
        values *list = NULL;
        assert_int_equal(scratch_open(&s), 0);
        write_recipe(&recipes[i], &s);
        openpi_status status = ocdbt_open(s.folder, &list, &error);
        if (!recipes[i].piece != (status == OPENPI_OK) ||
            (recipes[i].piece && !strstr(error.message, recipes[i].piece)))
            fail_msg("row %zu: status %d, \"%s\", expected \"%s\"", i, (int)status, error.message,
                     recipes[i].piece ? recipes[i].piece : "a database");
        if (status == OPENPI_OK) assert_int_equal(values_count(list), 2);
        if (status == OPENPI_OK) values_close(list);
        scratch_close(&s);
    }
}

/* ---- databases that are large ---- */

/* A leaf that a root's many entries lead to; its keys are two digits of `keys`, its values have `value` zero
 * bytes in a zstd frame. */
static void put_shared_leaf(int keys, size_t value, bytes *nodes) {
    bytes head = {0}, body = {0};
    put_fixed(&head, 0, 1), put_varint(&head, 0), put_varint(&head, (uint64_t)keys);
    for (int i = 1; i < keys; i++) put_varint(&head, 0);
    for (int i = 0; i < keys; i++) put_varint(&head, 2);
    for (int i = 0; i < keys; i++) put(&head, (char[]){(char)(1 + i / 100), (char)(1 + i % 100)}, 2);
    for (int i = 0; i < keys; i++) put_varint(&head, value);
    for (int i = 0; i < keys; i++) put_varint(&head, 0);
    if (value) {
        zstd_head(&body, 17);
        zstd_stored(&body, 0, head.at, head.count);
        zstd_zeros(&body, value * (size_t)keys);
    }
    ocdbt_block(nodes, OCDBT_NODE, value > 0, value ? &body : &head);
    free(head.at), free(body.at);
}

static void write_wide(scratch *s, int children, int keys, size_t value) {
    bytes root = {0}, nodes = {0}, manifest = {0};
    char key[16];
    put_shared_leaf(keys, value, &nodes);
    size_t leaf = nodes.count;
    put_fixed(&root, 1, 1), put_varint(&root, 1), put_varint(&root, 3), put_varint(&root, 0);
    put_text(&root, "d/n"), put_varint(&root, (uint64_t)children);
    for (int i = 1; i < children; i++) put_varint(&root, 0);
    for (int column = 0; column < 2; column++)              /* suffix length, common prefix */
        for (int i = 0; i < children; i++) put_varint(&root, 5);
    for (int i = 0; i < children; i++) snprintf(key, sizeof key, "%05d", i), put_text(&root, key);
    const uint64_t columns[] = {0, 0, leaf, (uint64_t)keys, 0, 0};
    for (int column = 0; column < 6; column++)
        for (int i = 0; i < children; i++) put_varint(&root, columns[column]);
    ocdbt_block(&nodes, OCDBT_NODE, 0, &root);
    put_manifest(&(recipe){.keys = (uint64_t)children * (uint64_t)keys - 2}, leaf, nodes.count - leaf,
                 &manifest);
    write_blocks(s, &nodes, &manifest);
    free(root.at), free(nodes.at), free(manifest.at);
}

/* Limits of nodes, keys and bytes together: nodes may be shared, so a small file can ask for much. */
static void test_wide(void **state) {
    static const struct { int children, keys; size_t value; const char *piece; } rows[] = {
        {3000, 2, 0, NULL},
        {66000, 1, 0, "the database has more than 65536 nodes"},
        {1100, 1000, 0, "the database has more than 1048576 keys"},
        {2, 1, 60 << 20, NULL},
        {3, 1, 60 << 20, "the database's nodes have more than 134217728 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        scratch s;
        values *list = NULL;
        assert_int_equal(scratch_open(&s), 0);
        write_wide(&s, rows[i].children, rows[i].keys, rows[i].value);
        if (rows[i].piece) {
            REFUSES(ocdbt_open(s.folder, &list, &error), OPENPI_BAD_FILE, rows[i].piece);
        } else {
            WORKS(ocdbt_open(s.folder, &list, &error));
            assert_int_equal(values_count(list), rows[i].children * rows[i].keys);
            values_close(list);
        }
        scratch_close(&s);
    }
}

/* A manifest whose body is this zstd frame. */
static void refused_frame(const bytes *frame, const char *piece) {
    openpi_error error = OPENPI_ERROR_INIT;
    bytes whole = {0};
    scratch s;
    values *list = NULL;
    assert_int_equal(scratch_open(&s), 0);
    ocdbt_block(&whole, OCDBT_MANIFEST, 1, frame);
    assert_int_equal(scratch_write(&s, "manifest.ocdbt", whole.at, whole.count), 0);
    REFUSES(ocdbt_open(s.folder, &list, &error), OPENPI_BAD_FILE, piece);
    free(whole.at);
    scratch_close(&s);
}

/* A frame of a few kB that becomes more than a node may have, one that asks for a large window, one that ends
 * early, one that something follows; and a block that is too large as it is. */
static void test_frames(void **state) {
    openpi_error error = OPENPI_ERROR_INIT;
    bytes bomb = {0}, window = {0}, cut = {0}, more = {0};
    scratch s;
    values *list = NULL;
    (void)state;
    zstd_head(&bomb, 17), zstd_zeros(&bomb, (1u << 27) + 1);
    refused_frame(&bomb, "its zstd data is larger than 134217728 bytes, expected at most that");
    zstd_head(&window, 24), zstd_zeros(&window, 100);
    refused_frame(&window, "its zstd data is damaged: Frame requires too much memory");
    zstd_head(&cut, 17), zstd_stored(&cut, 0, "abc", 3);
    refused_frame(&cut, "its zstd data is cut short");
    zstd_head(&more, 17), zstd_stored(&more, 1, "abc", 3), put(&more, "xy", 2);
    refused_frame(&more, "2 bytes follow its zstd data, expected none");
    free(bomb.at), free(window.at), free(cut.at), free(more.at);
    assert_int_equal(scratch_open(&s), 0);
    assert_int_equal(scratch_write(&s, "manifest.ocdbt", "", 0), 0);
    assert_int_equal(truncate(scratch_path(&s, "manifest.ocdbt"), (1 << 27) + 1), 0);
    REFUSES(ocdbt_open(s.folder, &list, &error), OPENPI_BAD_FILE, "expected 18 to 134217728 bytes");
    scratch_close(&s);
}

/* Headers that are right by their CRC-32C. */
static void test_headers(void **state) {
    static const struct { int at; uint8_t value; openpi_status status; const char *piece; } rows[] = {
        {0, 0x0d, OPENPI_BAD_FILE, "begins with 0x0ddb3a2a, expected 0x0cdb3a2a"},
        {4, 0xff, OPENPI_BAD_FILE, "says that it has 255 bytes"},
        {12, 1, OPENPI_UNSUPPORTED, "has version 1 and compression 0"},
        {13, 2, OPENPI_UNSUPPORTED, "has version 0 and compression 2"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        bytes manifest = {0}, whole = {0};
        scratch s;
        values *list = NULL;
        assert_int_equal(scratch_open(&s), 0);
        put_manifest(&(recipe){0}, 0, 100, &manifest);
        ocdbt_block(&whole, OCDBT_MANIFEST, 0, &manifest);
        whole.at[rows[i].at] = rows[i].value;
        ocdbt_repair(whole.at, whole.count);
        assert_int_equal(scratch_write(&s, "manifest.ocdbt", whole.at, whole.count), 0);
        REFUSES(ocdbt_open(s.folder, &list, &error), rows[i].status, rows[i].piece);
        free(manifest.at), free(whole.at);
        scratch_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recipes), cmocka_unit_test(test_wide),
                                       cmocka_unit_test(test_frames), cmocka_unit_test(test_headers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
