#include "base/notes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/report.h"

static int known(const notes *list, const char *text) {
    int count = list->count < NOTES ? list->count : NOTES;
    for (int i = 0; i < count; i++)
        if (!strcmp(list->list[i].text, text)) return 1;
    return 0;
}

void notes_add(notes *list, int warning, const char *format, ...) {
    openpi_error sentence = OPENPI_ERROR_INIT;       /* report() cuts and cleans a sentence */
    char text[1024];
    if (!list) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    report(&sentence, OPENPI_OK, "%.*s", NOTE_BYTES - 1, text);
    if (known(list, sentence.message)) return;
    int place = list->count++;
    if (place < NOTES) {
        list->list[place].warning = warning;
        memcpy(list->list[place].text, sentence.message, strlen(sentence.message) + 1);
        return;
    }
    notes_entry *last = &list->list[NOTES - 1];
    last->warning |= warning;
    snprintf(last->text, sizeof last->text, "there are %d more notes, which there was no room for",
             list->count - NOTES + 1);
}

const char *notes_get(const notes *list, int index, int *warning) {
    if (index < 0 || index >= NOTES || index >= list->count) return NULL;
    if (warning) *warning = list->list[index].warning;
    return list->list[index].text;
}
