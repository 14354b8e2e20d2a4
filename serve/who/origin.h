/* Which web page a request comes from: browsers say it in the header Origin, other programs send none. A page
 * of any site can ask ports of the machine that its browser runs on. */
#ifndef SERVE_ORIGIN_H
#define SERVE_ORIGIN_H

/* Whether the header Host names this server: an address, localhost or `own`, which may be NULL. Only another
 * name can be pointed at this machine by somebody else. */
int origin_is_own_host(const char *host, const char *own);
/* Whether there is no Origin, or it is the page of this Host. */
int origin_is_own(const char *origin, const char *host);
/* Whether it is one of a list with commas, or the list is "*". */
int origin_is_listed(const char *origin, const char *list);

#endif
