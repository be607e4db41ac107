/* SPDX-License-Identifier: Apache-2.0 */
/* Files: only regular ones are opened, without waiting for anybody's other end. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

/* O_NONBLOCK: a FIFO would otherwise wait in open; on a regular file it means nothing. */
static int open_regular(const char *path, int flags, int64_t *size, const char *verb, cli_str *error) {
  struct stat st;
  int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0 || fstat(fd, &st)) {
    cli_str_printf(error, "cannot be %s: %s", verb, strerror(errno));
  } else if (!S_ISREG(st.st_mode)) {
    cli_str_add(error, "is no regular file");
  } else {
    *size = st.st_size;
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}

int cli_open_read(const char *path, int64_t *size, cli_str *error) {
  return open_regular(path, O_RDONLY, size, "read", error);
}

int cli_open_write(const char *path, cli_str *error) {
  int64_t size;
  return open_regular(path, O_WRONLY | O_CREAT | O_TRUNC, &size, "written", error);
}

bool cli_read_at(int fd, void *p, size_t n, int64_t offset) {
  char *s = p;
  errno = 0;
  while (n) {
    ssize_t got = pread(fd, s, n < 1 << 30 ? n : 1 << 30, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    s += got;
    n -= (size_t)got;
    offset += got;
  }
  return true;
}

bool cli_write_all(int fd, const void *p, size_t n) {
  const char *s = p;
  while (n) {
    ssize_t put = write(fd, s, n < 1 << 30 ? n : 1 << 30);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    s += put;
    n -= (size_t)put;
  }
  return true;
}

char *cli_file_read(const char *path, size_t max, size_t *n, cli_str *error) {
  int64_t size;
  int fd = cli_open_read(path, &size, error);
  char *s = NULL;
  if (fd < 0) return NULL;
  if ((uint64_t)size > max) {
    cli_str_printf(error, "has %lld bytes, at most %zu are read", (long long)size, max);
  } else {
    s = cli_alloc((size_t)size + 1, 1);
    *n = (size_t)size;
    if (!cli_read_at(fd, s, *n, 0)) {
      cli_str_printf(error, "ends early or cannot be read: %s", strerror(errno));
      free(s);
      s = NULL;
    }
  }
  close(fd);
  return s;
}

/* The folder of a path, to stat it. */
static bool stat_folder(const char *path, const char *base, struct stat *st) {
  char *folder = cli_alloc((size_t)(base - path) + 2, 1);
  memcpy(folder, path, (size_t)(base - path));
  if (base == path) folder[0] = '.';
  bool ok = !stat(folder, st);
  free(folder);
  return ok;
}

bool cli_same_file(const char *a, const char *b) {
  struct stat x, y;
  bool is_a = !stat(a, &x), is_b = !stat(b, &y);
  if (is_a && is_b) return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
  if (is_a != is_b) return false;
  const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');          /* neither is there yet */
  const char *base_a = slash_a ? slash_a + 1 : a, *base_b = slash_b ? slash_b + 1 : b;
  return !strcmp(base_a, base_b) && stat_folder(a, base_a, &x) && stat_folder(b, base_b, &y) && x.st_dev == y.st_dev &&
         x.st_ino == y.st_ino;
}
