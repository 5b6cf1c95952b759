/* Lets the n-th call to the file system fail that a process makes below one folder. For LD_PRELOAD; armed by the tests
 * through ctypes. Calls elsewhere, and calls that cannot fail in the given way, are neither counted nor touched. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, UNLINK = 16, MKDIR = 32, TRUNCATE = 64, READ = 128, LIST = 256 };

static char folder[PATH_MAX];
static size_t folder_length;
static long target, seen;
static int failure, kinds, lasting, halved;

void fault_arm(const char *home, long number, const char *kind) {
  const int all = OPEN | WRITE | SYNC | RENAME | UNLINK | MKDIR | TRUNCATE | READ | LIST;
  seen = lasting = halved = 0;
  target = number;
  if (!strcmp(kind, "EIO")) failure = EIO, kinds = all;
  if (!strcmp(kind, "EACCES")) failure = EACCES, kinds = OPEN | RENAME | UNLINK | MKDIR | LIST;
  /* A disk stays full, and what is only read or removed does not mind. */
  if (!strcmp(kind, "ENOSPC")) failure = ENOSPC, kinds = OPEN | WRITE | SYNC | RENAME | MKDIR, lasting = 1;
  if (!strcmp(kind, "short")) failure = 0, kinds = WRITE, halved = 1;
  strncpy(folder, home, sizeof folder - 1);
  folder_length = strlen(folder);
}

long fault_disarm(void) {
  folder_length = 0;
  return seen;
}

static int below(const char *path) {
  return path && !strncmp(path, folder, folder_length) && (path[folder_length] == '/' || !path[folder_length]);
}

static int hit(int kind) {
  if (!(kinds & kind)) return 0;
  ++seen;
  return lasting ? seen >= target : seen == target;
}

static int fails_at(int kind, int directory, const char *path) {
  char whole[PATH_MAX], link[64];
  if (!folder_length) return 0;
  if (path && path[0] != '/' && directory != AT_FDCWD) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, whole, sizeof whole - 1);
    if (length < 0 || (size_t)length + strlen(path) + 2 > sizeof whole) return 0;
    whole[length] = '/';
    strcpy(whole + length + 1, path);
    path = whole;
  }
  if (!below(path) || !hit(kind)) return 0;
  errno = failure;
  return 1;
}

static int fails(int kind, int handle) {
  char path[PATH_MAX], link[64];
  if (!folder_length) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (!below(path) || !hit(kind)) return 0;
  errno = failure;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Reading needs no room on the disk. */
static int open_kind(int flags) { return failure == ENOSPC && !(flags & O_CREAT) ? 0 : OPEN; }

#define OPENS(name)                                                     \
  int name(const char *path, int flags, ...) {                          \
    va_list rest;                                                       \
    va_start(rest, flags);                                              \
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;           \
    va_end(rest);                                                       \
    if (fails_at(open_kind(flags), AT_FDCWD, path)) return -1;          \
    return REAL(name)(path, flags, mode);                               \
  }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                  \
  int name(int directory, const char *path, int flags, ...) {           \
    va_list rest;                                                       \
    va_start(rest, flags);                                              \
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;           \
    va_end(rest);                                                       \
    if (fails_at(open_kind(flags), directory, path)) return -1;         \
    return REAL(name)(directory, path, flags, mode);                    \
  }
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t write(int handle, const void *bytes, size_t count) {
  if (fails(WRITE, handle)) {
    if (!halved) return -1;
    count = count > 1 ? count / 2 : count;
  }
  return REAL(write)(handle, bytes, count);
}

ssize_t read(int handle, void *bytes, size_t count) {
  return fails(READ, handle) ? -1 : REAL(read)(handle, bytes, count);
}

int fsync(int handle) { return fails(SYNC, handle) ? -1 : REAL(fsync)(handle); }
int ftruncate(int handle, off_t size) { return fails(TRUNCATE, handle) ? -1 : REAL(ftruncate)(handle, size); }
int ftruncate64(int handle, off64_t size) { return fails(TRUNCATE, handle) ? -1 : REAL(ftruncate64)(handle, size); }
int rename(const char *old, const char *new) {
  return fails_at(RENAME, AT_FDCWD, new) ? -1 : REAL(rename)(old, new);
}
int renameat(int from, const char *old, int to, const char *new) {
  return fails_at(RENAME, to, new) ? -1 : REAL(renameat)(from, old, to, new);
}
int unlink(const char *path) { return fails_at(UNLINK, AT_FDCWD, path) ? -1 : REAL(unlink)(path); }
int unlinkat(int directory, const char *path, int flags) {
  return fails_at(UNLINK, directory, path) ? -1 : REAL(unlinkat)(directory, path, flags);
}
int mkdir(const char *path, mode_t mode) { return fails_at(MKDIR, AT_FDCWD, path) ? -1 : REAL(mkdir)(path, mode); }

#include <dirent.h>
DIR *opendir(const char *path) { return fails_at(LIST, AT_FDCWD, path) ? NULL : REAL(opendir)(path); }
