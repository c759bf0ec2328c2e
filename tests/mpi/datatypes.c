/* Vectors, structures, indexed types and subarrays: bytes in the holes of a receive stay as they were. */

#include "check.h"

static int to, from;

/* Sends `count` elements of the type from one buffer into another of the same size. The receiver's bytes
   that belong to the type equal the sender's, and the others are untouched. */
static void pass(const char *name, MPI_Datatype type, int count, size_t size, int tag) {
    unsigned char *out = memory(size), *in = memory(size), *mask = memory(size), *packed = memory(size);
    int length, place = 0, received;
    MPI_Type_commit(&type);
    MPI_Type_size(type, &length);
    fill(out, size, (unsigned)(rank * 50 + tag));
    memset(in, 0x5a, size);
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(in, count, type, from, tag, MPI_COMM_WORLD, &request);
    MPI_Send(out, count, type, to, tag, MPI_COMM_WORLD);
    MPI_Wait(&request, &status);
    MPI_Get_count(&status, type, &received);
    /* Which bytes belong to the type: those that an unpacking of ones sets. */
    memset(mask, 0, size);
    memset(packed, 0xff, (size_t)length * (size_t)count);
    MPI_Unpack(packed, length * count, &place, mask, count, type, MPI_COMM_SELF);
    unsigned char *wanted = memory(size);
    fill(wanted, size, (unsigned)(from * 50 + tag));
    for (size_t at = 0; at < size; at++) {
        if (in[at] != (mask[at] ? wanted[at] : 0x5a)) fprintf(stderr, "%s: byte %zu is wrong\n", name, at);
        CHECK(in[at] == (mask[at] ? wanted[at] : 0x5a));
    }
    CHECK(received == count);
    /* What one side sends with holes, the other receives without. */
    MPI_Irecv(packed, length * count, MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
    MPI_Send(out, count, type, to, tag, MPI_COMM_WORLD);
    MPI_Wait(&request, &status);
    memset(in, 0x5a, size);
    place = 0;
    MPI_Unpack(packed, length * count, &place, in, count, type, MPI_COMM_SELF);
    for (size_t at = 0; at < size; at++) CHECK(in[at] == (mask[at] ? wanted[at] : 0x5a));
    MPI_Type_free(&type);
    free(out), free(in), free(mask), free(packed), free(wanted);
}

struct record {
    char letter;
    double number;
    short pair[3];
    int last;
};

static MPI_Datatype record(void) {
    int lengths[] = {1, 1, 2, 1};
    MPI_Aint places[] = {offsetof(struct record, letter), offsetof(struct record, number),
        offsetof(struct record, pair), offsetof(struct record, last)};
    MPI_Datatype parts[] = {MPI_CHAR, MPI_DOUBLE, MPI_SHORT, MPI_INT}, loose, type;
    MPI_Type_create_struct(4, lengths, places, parts, &loose);
    MPI_Type_create_resized(loose, 0, sizeof(struct record), &type);
    MPI_Type_free(&loose);
    return type;
}

int main(int count, char **words) {
    begin(&count, &words);
    to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    MPI_Datatype type, inner;
    /* Short, and long enough for the way of large messages. */
    static const int counts[] = {1, 40, 3000, 100000};
    for (int index = 0; index < 4; index++) {
        int number = counts[index];
        MPI_Type_vector(number, 3, 5, MPI_INT, &type);
        pass("vector", type, 1, (size_t)number * 5 * sizeof(int), 10 + index);
        pass("structure", record(), number, (size_t)number * sizeof(struct record), 20 + index);
        inner = record();
        MPI_Type_vector(number, 1, 2, inner, &type);
        pass("vector of structures", type, 1, (size_t)number * 2 * sizeof(struct record), 30 + index);
        MPI_Type_free(&inner);
    }
    int lengths[] = {1, 0, 7, 2000}, places[] = {3, 5, 11, 100};
    MPI_Type_indexed(4, lengths, places, MPI_SHORT, &type);
    pass("indexed", type, 1, 2100 * sizeof(short), 40);
    int sizes[] = {100, 90, 8}, parts[] = {60, 50, 3}, starts[] = {7, 20, 4};
    MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_FLOAT, &type);
    pass("subarray", type, 1, 100 * 90 * 8 * sizeof(float), 41);
    MPI_Type_contiguous(1000000, MPI_BYTE, &type);
    pass("contiguous", type, 2, 2000000, 42);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
