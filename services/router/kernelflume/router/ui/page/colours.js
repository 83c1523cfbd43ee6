// Each attention node has one of eight colours, the same in every part of the page; names tell nodes apart.

const NUM_COLOURS = 8;
const given = new Map();

/** Return the class that fills a shape with the colour of a node. */
export function colourOf(nodeId) {
  if (!nodeId) return "node-none";
  if (!given.has(nodeId)) given.set(nodeId, given.size % NUM_COLOURS);
  return `node-${given.get(nodeId)}`;
}
