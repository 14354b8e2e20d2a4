/* What a load tells besides its result: sentences about things that change actions and are no errors, such as
 * statistics that are missing. A policy and a checkpoint hold such a list each; the public header gives it to
 * users, and the command, the server and Python show it. */
#ifndef BASE_NOTES_H
#define BASE_NOTES_H

enum {
    NOTES = 24,                  /* sentences in a list; more are only counted        */
    NOTE_BYTES = 400             /* longest sentence, with its NUL                    */
};

typedef struct notes_entry {
    int warning;                 /* 1: actions may not be what the user expects       */
    char text[NOTE_BYTES];       /* one sentence without a newline                    */
} notes_entry;

typedef struct notes {
    int count;                   /* notes added, the dropped ones included            */
    notes_entry list[NOTES];     /* the last place says how many there was no room for */
} notes;

/* Adds one whole sentence: file, field or value, what is done and which option decides. A sentence that is
 * there already is not added again. `list` may be NULL: nobody is told. */
void notes_add(notes *list, int warning, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Sentence `index`, and in *warning (may be NULL) its level; NULL after the last one. */
const char *notes_get(const notes *list, int index, int *warning);

#endif
