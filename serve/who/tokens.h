/* Tokens: who may connect, and as what. A file has one token a line,
 *
 *   NAME  reserved|shared|admin  RATE  SHA-256 of the key in hex
 *
 * RATE is in calls a second; a shared or admin token has none and says "-". What follows a "#" is a comment.
 * The keys themselves are with the robots only. A token of the class admin opens the admin port, and no
 * WebSocket. */
#ifndef SERVE_TOKENS_H
#define SERVE_TOKENS_H

#include "digest.h"
#include "openpi.h"
#include "serve/schedule/scheduler.h"

enum {
    TOKEN_NAME = 64,             /* bytes of a name, with the NUL                                          */
    TOKEN_RATE = 1000,           /* the highest                                                            */
};

typedef struct token {
    char name[TOKEN_NAME];
    int admin;                   /* 1: of the class admin; the next two say nothing                        */
    scheduler_class class;
    double rate;                 /* a reserved token's                                                     */
    uint8_t digest[DIGEST_BYTES];          /* its key's                                                    */
    int line;                    /* place in the file, from 1                                              */
} token;

typedef struct tokens {
    token *items;                /* [count], as they stand in the file                                     */
    const token **by_key;        /* [count], the same sorted by digest                                     */
    int count;
} tokens;

/* A file that is not as said above is one sentence with its line. Anything but a regular file is refused:
 * whatever stands at the path, nobody waits for it. */
openpi_status tokens_open(const char *path, tokens *out, openpi_error *error);
void tokens_close(tokens *tokens);

/* The robot's token of an Authorization header's value, "Api-Key KEY" or "Bearer KEY"; NULL: none. */
const token *tokens_find(const tokens *tokens, const char *authorization);
/* The same of the class admin. */
const token *tokens_find_admin(const tokens *tokens, const char *authorization);
/* 1: the key with this SHA-256, of DIGEST_BYTES, is a robot's. */
int tokens_has_robot(const tokens *tokens, const uint8_t *digest);
/* 1: there is a token of the class admin. */
int tokens_has_admin(const tokens *tokens);

#endif
