// Where each node's cell is: groups are blocks on shelves, as large as the room allows. Numbers in, numbers out.

export interface Group { label: string; members: number[] }
export interface Block { group: number; x: number; y: number; width: number; height: number; columns: number }
export interface Layout { cell: number; blocks: Block[]; height: number }

export const LABEL = 20;
const GAP = 16, MOST_CELL = 26, LEAST_CELL = 3;
// Narrower blocks have no room for a label.
const NARROWEST = 132;

// The largest cells that fit; if none do, the layout that is least high. More than so many blocks beside each other are too narrow to compare.
const MOST_BESIDE = 8;

export function layOut(sizes: number[], width: number, room: number): Layout {
  const most = Math.max(1, Math.min(MOST_BESIDE, sizes.length, Math.floor((width + GAP) / (NARROWEST + GAP))));
  let lowest: Layout | null = null;
  for (let cell = MOST_CELL; cell >= LEAST_CELL; cell--) {
    for (let beside = 1; beside <= most; beside++) {
      const layout = shelves(sizes, width, cell, beside);
      if (!lowest || layout.cell < lowest.cell || layout.height < lowest.height) lowest = layout;
    }
    if (lowest!.height <= room) break;
  }
  return lowest!;
}

function shelves(sizes: number[], width: number, cell: number, beside: number): Layout {
  const wide = Math.floor((width - (beside - 1) * GAP) / beside);
  const most = Math.max(1, Math.floor(wide / cell));
  const blocks: Block[] = [];
  let x = 0, y = 0, tallest = 0;
  sizes.forEach((size, group) => {
    const columns = Math.min(Math.max(1, size), most);
    const height = LABEL + Math.ceil(size / columns) * cell;
    // A small group's label needs room, too.
    const own = Math.min(Math.max(columns * cell, NARROWEST), wide);
    if (x > 0 && x + own > width) { x = 0; y += tallest + GAP; tallest = 0; }
    blocks.push({ group, x, y, width: own, height, columns });
    x += own + GAP;
    tallest = Math.max(tallest, height);
  });
  return { cell, blocks, height: y + tallest };
}

export interface Hit { group: number; member: number | null }

// What is at a place: a cell, or a group's label (member null).
export function hit(layout: Layout, sizes: number[], x: number, y: number): Hit | null {
  const block = layout.blocks.find(block => x >= block.x && x < block.x + block.width && y >= block.y && y < block.y + block.height);
  if (!block) return null;
  if (y < block.y + LABEL) return { group: block.group, member: null };
  const column = Math.floor((x - block.x) / layout.cell), row = Math.floor((y - block.y - LABEL) / layout.cell);
  const member = row * block.columns + column;
  return column < block.columns && member < sizes[block.group]! ? { group: block.group, member } : null;
}

export function cellAt(layout: Layout, group: number, member: number): { x: number; y: number } {
  const block = layout.blocks[group]!;
  return { x: block.x + member % block.columns * layout.cell, y: block.y + LABEL + Math.floor(member / block.columns) * layout.cell };
}

// The cell that an arrow key leads to; past the end of a group to the next one.
export function moved(layout: Layout, sizes: number[], from: { group: number; member: number }, key: string): { group: number; member: number } {
  const columns = layout.blocks[from.group]!.columns;
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key] ?? 0;
  const member = from.member + by;
  if (member >= 0 && member < sizes[from.group]!) return { group: from.group, member };
  const group = from.group + Math.sign(by);
  if (group < 0 || group >= sizes.length) return from;
  return { group, member: by < 0 ? sizes[group]! - 1 : 0 };
}
