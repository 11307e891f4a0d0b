//! Which GPUs no job holds, by node.

/// The most GPUs of a node.
const GPUS_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Free {
    by_node: Vec<u32>,
    /// How many nodes have so many GPUs free.
    nodes: [u32; GPUS_MAX + 1],
}

impl Free {
    pub(super) fn new(by_node: &[u32]) -> Self {
        let mut nodes = [0; GPUS_MAX + 1];
        by_node.iter().for_each(|gpus| nodes[*gpus as usize] += 1);
        Self {
            by_node: by_node.to_vec(),
            nodes,
        }
    }

    pub(super) fn of(&self, node: usize) -> u32 {
        self.by_node[node]
    }

    pub(super) fn set(&mut self, node: usize, gpus: u32) {
        self.nodes[self.by_node[node] as usize] -= 1;
        self.by_node[node] = gpus;
        self.nodes[gpus as usize] += 1;
    }

    pub(super) fn gpus(&self) -> u32 {
        self.by_size().map(|(gpus, nodes)| gpus * nodes).sum()
    }

    /// How many members with so many GPUs find room.
    pub(super) fn members(&self, gpus: u32) -> u32 {
        self.by_size()
            .map(|(free, nodes)| free / gpus * nodes)
            .sum()
    }

    fn by_size(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..).zip(self.nodes)
    }
}
