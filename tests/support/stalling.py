"""A library for LD_PRELOAD that makes a process see a frozen file system."""

import subprocess
from pathlib import Path

STALLING = """
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static void wait_if_regular(int fd) {
    struct stat found;
    if (fd <= 2 || fstat(fd, &found) || !S_ISREG(found.st_mode)) return;
    while (access(getenv("STALLED"), F_OK) == 0) usleep(10000);
}
int fsync(int fd) { wait_if_regular(fd); return (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { wait_if_regular(fd); return (int)syscall(SYS_fdatasync, fd); }
ssize_t write(int fd, const void *data, size_t size) {
    wait_if_regular(fd);
    return syscall(SYS_write, fd, data, size);
}
static ssize_t write_at(int fd, const void *data, size_t size, off_t at) {
    wait_if_regular(fd);
    return syscall(SYS_pwrite64, fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return write_at(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    return write_at(fd, data, size, at);
}
"""
"""While the file STALLED exists, no write to a regular file and no sync returns."""


def built(folder: Path) -> Path:
    """Compile the library. Raises OSError or CalledProcessError if there is no compiler."""
    source, library = folder / "stalling.c", folder / "stalling.so"
    source.write_text(STALLING)
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return library
