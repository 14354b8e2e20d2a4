/* A tokenizer's file, SentencePiece's or Hugging Face's: read, and if it is one, used on a few texts. */
#include "fuzz.h"
#include "policy/tokenizer/tokenizer.h"

static const char *const texts[] = {
    "", "pick up the red cup", "  déjà vu — 青い箱 🙂\n\n\t",
    "Task: x, State: 0 128 255;\nAction: ", "<bos><0x41>\xe2\x96\x81\xe2\x96\x81 aaaaaaaaaaaaaaaa"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { IDS = 256 };
    openpi_error error = OPENPI_ERROR_INIT;
    tokenizer *tokenizer;
    uint8_t *file = exact_copy(data, size, 0);
    if (went_well(tokenizer_parse(file, size, "fuzz", &tokenizer, &error), &error)) {
        memset(file, 0xee, size);                        /* nothing of the file is needed any more */
        tokenizer_scratch *scratch;
        PROMISE(tokenizer_scratch_create(64, &scratch, &error) == OPENPI_OK);
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            int32_t ids[IDS];
            int count = 0;
            openpi_status status =
                tokenizer_encode(tokenizer, scratch, texts[i], strlen(texts[i]), ids, IDS, &count, &error);
            if (!went_well(status, &error)) continue;
            PROMISE(count >= 0 && count <= IDS);
            for (int j = 0; j < count; j++) PROMISE(ids[j] >= 0 && ids[j] < tokenizer_vocab(tokenizer));
        }
        tokenizer_scratch_close(scratch);
        tokenizer_close(tokenizer);
    }
    free(file);
    return 0;
}
