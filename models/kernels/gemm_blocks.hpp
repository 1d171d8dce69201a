// models/kernels/gemm_blocks.hpp — cuts a matmul into tiles, panels and tasks; shared by the
// kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "models/kernels/gemm.hpp"
#include "models/kernels/parallel.hpp"

namespace tandem {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// A grid of tasks over C in units of tiles. There are more tasks than threads: if a thread loses
/// its core for a while, the others do its work. All tasks have one size, so that no thread works
/// alone at the end.
struct GemmGrid {
  std::int64_t row_tiles, column_tiles;  // of the whole C
  std::int64_t row_tasks, column_tasks;

  struct Part {
    std::int64_t row_begin, row_end, column_begin, column_end;
  };

  static GemmGrid of(std::int64_t row_tiles, std::int64_t column_tiles,
                     std::int64_t rows_per_task) {
    if (row_tiles == 0 || column_tiles == 0) {
      return {row_tiles, column_tiles, 0, 1};
    }
    const std::int64_t team = parallel_team_size();
    GemmGrid grid{row_tiles, column_tiles, ceil_div(row_tiles, rows_per_task), 1};
    if (team > 1) {
      grid.row_tasks =
          std::min(row_tiles, ceil_div(std::max(grid.row_tasks, 2 * team), team) * team);
      grid.column_tasks = std::min(column_tiles, ceil_div(2 * team, grid.row_tasks));
    }
    return grid;
  }

  [[nodiscard]] std::int64_t tasks() const { return row_tasks * column_tasks; }
  [[nodiscard]] Part part(std::int64_t task) const {
    const std::int64_t r = task / column_tasks;
    const std::int64_t c = task % column_tasks;
    return {r * row_tiles / row_tasks, (r + 1) * row_tiles / row_tasks,
            c * column_tiles / column_tasks, (c + 1) * column_tiles / column_tasks};
  }
};

}  // namespace tandem
