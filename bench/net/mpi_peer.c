// bench/net/mpi_peer.c — an MPI's collectives on two hosts, for tools/bench/net.py, which compiles
// it with mpicc where that is installed.
//
// Rank 0 reads lines "OPERATION BYTES TIMES" and writes the seconds that the slower rank took.
// Between two lines no rank keeps its CPU busy, because other libraries are measured then.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kMostBytes = 64 << 20, kBetweenLooksUs = 2000 };

struct Line {
  char name[32];
  long bytes;
  long times;
};

static void once(const struct Line* line, float* block, float* into) {
  const int whole = (int)(line->bytes / 4);
  const int part = whole / 2;
  if (strcmp(line->name, "all_gather") == 0) {
    MPI_Allgather(block, part, MPI_FLOAT, into, part, MPI_FLOAT, MPI_COMM_WORLD);
  } else if (strcmp(line->name, "reduce_scatter") == 0) {
    MPI_Reduce_scatter_block(block, into, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(line->name, "all_reduce") == 0) {
    MPI_Allreduce(block, into, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(line->name, "all_to_all") == 0) {
    MPI_Alltoall(block, part, MPI_FLOAT, into, part, MPI_FLOAT, MPI_COMM_WORLD);
  } else {
    fprintf(stderr, "no operation %s\n", line->name);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
}

static int next_line(int rank, struct Line* line) {
  if (rank == 0) {
    if (scanf("%31s %ld %ld", line->name, &line->bytes, &line->times) != 3) {
      line->times = -1;
    }
    MPI_Send(line, sizeof(*line), MPI_BYTE, 1, 0, MPI_COMM_WORLD);
  } else {
    int came = 0;
    while (!came) {
      MPI_Iprobe(0, 0, MPI_COMM_WORLD, &came, MPI_STATUS_IGNORE);
      if (!came) {
        usleep(kBetweenLooksUs);
      }
    }
    MPI_Recv(line, sizeof(*line), MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  return line->times >= 0;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  float* block = malloc(kMostBytes);
  float* into = malloc(kMostBytes);
  for (long i = 0; i < kMostBytes / 4; ++i) {  // pages of their own, as the other libraries have
    block[i] = into[i] = (float)(i & 1);
  }
  if (rank == 0) {
    printf("ready\n");
    fflush(stdout);
  }
  struct Line line;
  while (next_line(rank, &line)) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (long i = 0; i < line.times; ++i) {
      once(&line, block, into);
    }
    double seconds = MPI_Wtime() - start;
    double slowest = 0;
    MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      printf("%.9g\n", slowest);
      fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
