# SPDX-License-Identifier: MIT-0 OR Unlicense
# os.awk  refuses calls of the operating system outside of jobq_pg.h's section >>os
#
#     awk -f tests/tools/os.awk jobq.h jobq_pg.h
#
# A system has its half of that section, and nothing else. Only struct pollfd and its flags may be
# named elsewhere, because the program sees them, too.

BEGIN {
    headers = "errno|netdb|poll|pthread|sched|semaphore|signal|unistd|sys/[a-z]+|netinet/[a-z]+|" \
        "winsock2?|ws2tcpip|windows|bcrypt|process"
    names = "pthread_[a-z_]+|PTHREAD_[A-Z_]+|__atomic_[a-z_]+|__sync_[a-z_]+|errno|E[A-Z]+OUT|EINTR|" \
        "EAGAIN|SA_[A-Z]+|SIG[A-MO-Z][A-Z]*|SIG_[A-Z]+|[FO]_[A-Z]+|FD_CLOEXEC|ssize_t|pid_t|clockid_t|nfds_t|siginfo_t|" \
        "timespec|timeval|sigaction|getpid|nanosleep|clock_gettime|gettimeofday|CLOCK_[A-Z]+|gethostname|" \
        "HANDLE|SOCKET|INVALID_SOCKET|WSA[A-Za-z]+|DWORD|WINAPI|SRWLOCK|CONDITION_VARIABLE"
    calls = "poll|select|pipe|fcntl|open|read|write|close|dup|dup2|shutdown|socket|send|recv|fork|kill|" \
        "raise|signal|sleep|usleep|sched_yield|mmap|munmap|gmtime_r|localtime_r|strerror_r|" \
        "Sleep|CloseHandle|GetLastError|closesocket|ioctlsocket|CreateFile[AW]|_beginthreadex"
}
FNR == 1 { inside = 0; section = "" }
/^\/\* ---- >>[a-z_]+/ { match($0, />>[a-z_]+/); section = substr($0, RSTART, RLENGTH) }
/>>migrations begin/ { nextfile }
{
    text = $0
    gsub(/"([^"\\]|\\.)*"/, "\"\"", text)
    if (inside && !sub(/^.*\*\//, "", text)) next
    inside = 0
    gsub(/\/\*[^*]*\*\//, "", text)
    if (sub(/\/\*.*/, "", text)) inside = 1
    if (section == ">>os") next
    sub(/^#(if|elif) .*/, "", text)
    if (text !~ "^#include <(" headers ")\\.h>" &&
        (section == "" || text !~ /_WIN32/) &&
        (" " text) !~ "[^A-Za-z0-9_](" names ")([^A-Za-z0-9_]|$)" &&
        (" " text) !~ "[^A-Za-z0-9_>.*](" calls ")\\(") next
    print FILENAME ":" FNR ": what differs between systems belongs to >>os: " $0
    bad = 1
}
END { exit bad }
