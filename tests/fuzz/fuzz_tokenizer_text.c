/* Any text through both kinds of tokenizer, alone and in the prompts of each variant. */
#include "fuzz.h"
#include "policy/prompt.h"

static tokenizer *tokenizers[2];

static void open_tokenizers(void) {
    openpi_error error = OPENPI_ERROR_INIT;
    if (tokenizer_synthetic(&tokenizers[0], &error) != OPENPI_OK ||
        tokenizer_open(GOLDEN "/lerobot/pi05/checkpoint/tokenizer/tokenizer.json", &tokenizers[1], &error) !=
            OPENPI_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

static void check_ids(const tokenizer *tokenizer, const int32_t *ids, int count, int max,
                      openpi_status status, const openpi_error *error) {
    if (!went_well(status, error)) return;
    PROMISE(count >= 0 && count <= max);
    for (int i = 0; i < count; i++) PROMISE(ids[i] >= 0 && ids[i] < tokenizer_vocab(tokenizer));
}

static void encode(const tokenizer *tokenizer, tokenizer_scratch *scratch, const char *text, size_t bytes) {
    openpi_error error = OPENPI_ERROR_INIT;
    int count = 0, again = 0;
    if (!went_well(tokenizer_encode(tokenizer, scratch, text, bytes, NULL, 0, &count, &error), &error))
        return;
    PROMISE(count >= 0 && (size_t)count <= 4 * bytes + 4);
    int32_t *ids = malloc((size_t)count * sizeof *ids + 1);
    PROMISE(ids);
    openpi_status status = tokenizer_encode(tokenizer, scratch, text, bytes, ids, count, &again, &error);
    PROMISE(status == OPENPI_OK && again == count);
    check_ids(tokenizer, ids, count, count, status, &error);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { MAX = 200, STATE = 8 };
    if (!tokenizers[0]) open_tokenizers();
    double state[STATE] = {0};
    if (size >= sizeof state) memcpy(state, data, sizeof state);
    char *text = exact_copy(data, size, 0);
    for (int i = 0; i < 2; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        const tokenizer *t = tokenizers[i];
        tokenizer_scratch *scratch;
        prompt_buffer *buffer;
        int32_t ids[MAX];
        int count = 0;
        PROMISE(tokenizer_scratch_create(1, &scratch, &error) == OPENPI_OK);
        PROMISE(prompt_buffer_create(1, STATE, &buffer, &error) == OPENPI_OK);
        encode(t, scratch, text, size);
        int max = size ? 1 + data[0] % MAX : MAX;
        openpi_status status =
            prompt_openpi(t, scratch, buffer, text, size, state, 0, ids, max, &count, &error);
        check_ids(t, ids, count, max, status, &error);
        status = prompt_openpi(t, scratch, buffer, text, size, state, STATE, ids, max, &count, &error);
        check_ids(t, ids, count, max, status, &error);
        status = prompt_lerobot_pi0(t, scratch, buffer, text, size, ids, max, &count, &error);
        check_ids(t, ids, count, max, status, &error);
        status = prompt_lerobot_pi05(t, scratch, buffer, text, size, state, STATE, ids, max, &count, &error);
        check_ids(t, ids, count, max, status, &error);
        prompt_buffer_close(buffer);
        tokenizer_scratch_close(scratch);
    }
    free(text);
    return 0;
}
