/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * system.h -- what differs between POSIX and Windows, where work, top and web are missing.
 */
#ifdef _WIN32

#include <io.h>

#define poll WSAPoll
#define SIGHUP SIGBREAK

/* Of the terminal; 0: there is none. */
static int app_columns(void)
{
    CONSOLE_SCREEN_BUFFER_INFO info;

    if (!GetConsoleScreenBufferInfo(GetStdHandle(STD_OUTPUT_HANDLE), &info)) return 0;
    return info.srWindow.Right - info.srWindow.Left + 1;
}

/* What was written is on the disk, and so is its name. */
static bool app_keep(FILE *file, const char *temporary, const char *path, const char *folder)
{
    bool good = fflush(file) == 0 && _commit(_fileno(file)) == 0;

    (void)folder;
    return fclose(file) == 0 && good &&
           MoveFileExA(temporary, path, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
}

static void app_trap(void) { DebugBreak(); }

#else

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

static int app_columns(void)
{
    struct winsize size;

    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
    return size.ws_col;
}

static bool app_keep(FILE *file, const char *temporary, const char *path, const char *folder)
{
    int fd = open(folder, O_RDONLY);
    bool good = fflush(file) == 0 && fsync(fileno(file)) == 0;

    good = fclose(file) == 0 && good && rename(temporary, path) == 0 && fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    return good;
}

static void app_trap(void) { raise(SIGTRAP); }

#endif
