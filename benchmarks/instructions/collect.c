/* Lets a program say which of its instructions Valgrind's callgrind is to count. */
#include <valgrind/callgrind.h>

void counting_begins(void) {
    CALLGRIND_START_INSTRUMENTATION;
}

void counting(void) {
    CALLGRIND_TOGGLE_COLLECT;
}
