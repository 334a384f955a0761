//! Random traces that look like a training run's: phases with their own sizes, fill level and order of freeing.

use std::fmt;

pub(crate) const MIB: u64 = 1 << 20;

/// What a trace does besides allocating and freeing, in operations per million.
#[derive(Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) streams: u64,
    pub(crate) empty_ppm: u64,
    pub(crate) fraction_ppm: u64,
    /// Settings to choose from when settings change at run time.
    pub(crate) settings: &'static [&'static str],
}

/// One call on the allocator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Op {
    Alloc { id: u64, bytes: u64, stream: u64 },
    Free { id: u64 },
    EmptyCache,
    ResetPeak,
    ResetAccumulated,
    Fraction(f64),
    Settings(&'static str),
}

/// As the driver reads it.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alloc { id, bytes, stream } => write!(f, "a {id} {bytes} {stream}"),
            Self::Free { id } => write!(f, "f {id}"),
            Self::EmptyCache => f.write_str("e"),
            Self::ResetPeak => f.write_str("p"),
            Self::ResetAccumulated => f.write_str("q"),
            Self::Fraction(fraction) => write!(f, "m {fraction}"),
            Self::Settings(text) => write!(f, "o {text}"),
        }
    }
}

/// SplitMix64: small, good enough, and the same on every machine.
#[derive(Clone)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A seed from a name.
    pub(crate) fn named(name: &str, seed: u64) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// `low..=high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub(crate) fn ratio(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1_u64 << 53) as f64
    }

    /// 2 to a power that is evenly spread.
    pub(crate) fn log(&mut self, low: f64, high: f64) -> u64 {
        (low + self.ratio() * (high - low)).exp2() as u64
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Sizes {
    Log,
    Edge,
    Layer,
    Small,
    Big,
    Mixed,
}

#[derive(Clone, Copy, PartialEq)]
enum Order {
    Random,
    Lifo,
    Fifo,
}

/// Sizes at which a rule of the allocator changes.
const EDGES: [u64; 18] = [
    512,
    1024,
    4096,
    512 << 10,
    MIB,
    2 * MIB,
    5 * MIB,
    10 * MIB,
    12 * MIB,
    19 * MIB,
    20 * MIB,
    21 * MIB,
    22 * MIB,
    32 * MIB,
    40 * MIB,
    52 * MIB,
    64 * MIB,
    84 * MIB,
];

/// An endless random trace.
#[derive(Clone)]
pub(crate) struct Trace {
    numbers: Numbers,
    mix: Mix,
    budget: u64,
    layers: Vec<u64>,
    live: std::collections::VecDeque<(u64, u64)>,
    held: u64,
    next_id: u64,
    phase_left: u64,
    sizes: Sizes,
    target: u64,
    order: Order,
}

impl Trace {
    pub(crate) fn new(mut numbers: Numbers, total_bytes: u64, mix: Mix) -> Self {
        let layers = (0..60).map(|_| numbers.log(4.0, 25.5)).collect();
        let large = total_bytes >= 8 << 30;
        Self {
            numbers,
            mix,
            budget: if large {
                6 << 30
            } else {
                total_bytes * 115 / 100
            },
            layers,
            live: std::collections::VecDeque::new(),
            held: 0,
            next_id: 0,
            phase_left: 0,
            sizes: Sizes::Mixed,
            target: 0,
            order: Order::Random,
        }
    }

    fn new_phase(&mut self) {
        let n = &mut self.numbers;
        self.phase_left = n.between(200, 4000);
        self.sizes = n.pick(&[
            Sizes::Log,
            Sizes::Edge,
            Sizes::Layer,
            Sizes::Small,
            Sizes::Big,
            Sizes::Mixed,
            Sizes::Mixed,
        ]);
        self.target = self.budget / 10 * n.pick(&[1, 3, 6, 10, 10]);
        self.order = n.pick(&[Order::Random, Order::Lifo, Order::Fifo]);
    }

    fn size(&mut self) -> u64 {
        let n = &mut self.numbers;
        let sizes = match self.sizes {
            Sizes::Mixed => n.pick(&[
                Sizes::Log,
                Sizes::Edge,
                Sizes::Layer,
                Sizes::Small,
                Sizes::Big,
            ]),
            sizes => sizes,
        };
        match sizes {
            Sizes::Log => n.log(0.0, 26.5),
            Sizes::Edge => {
                let any = n.between(0, 2 * MIB) as i64 - MIB as i64;
                let off = n.pick(&[-1025, -513, -512, -511, -1, 0, 1, 511, 512, 513, any]);
                n.pick(&EDGES).saturating_add_signed(off)
            }
            Sizes::Layer => n.pick(&self.layers),
            Sizes::Small if n.below(10) < 3 => n.between(0, 3 * MIB),
            Sizes::Small => n.between(1, 200_000),
            Sizes::Big | Sizes::Mixed => n.between(MIB, 120 * MIB),
        }
    }

    fn free(&mut self) -> Option<Op> {
        let (id, bytes) = match self.order {
            Order::Random if !self.live.is_empty() => {
                let index = self.numbers.below(self.live.len() as u64) as usize;
                self.live.swap_remove_back(index)
            }
            Order::Random | Order::Lifo => self.live.pop_back(),
            Order::Fifo => self.live.pop_front(),
        }?;
        self.held -= bytes;
        Some(Op::Free { id })
    }

    fn alloc(&mut self) -> Op {
        let bytes = self.size();
        let id = self.next_id;
        self.next_id += 1;
        self.live.push_back((id, bytes));
        self.held += bytes;
        let stream = self.numbers.below(self.mix.streams);
        Op::Alloc { id, bytes, stream }
    }
}

impl Iterator for Trace {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        if self.phase_left == 0 {
            self.new_phase();
        }
        self.phase_left -= 1;
        let settings_ppm = if self.mix.settings.is_empty() {
            0
        } else {
            1000
        };
        let x = self.numbers.below(1_000_000);
        let mut edge = self.mix.empty_ppm;
        if x < edge {
            return Some(Op::EmptyCache);
        }
        edge += 500;
        if x < edge {
            return Some(self.numbers.pick(&[Op::ResetPeak, Op::ResetAccumulated]));
        }
        edge += self.mix.fraction_ppm;
        if x < edge {
            return Some(Op::Fraction(self.numbers.pick(&[0.3, 0.5, 0.75, 0.9, 1.0])));
        }
        edge += settings_ppm;
        if x < edge {
            return Some(Op::Settings(self.numbers.pick(self.mix.settings)));
        }
        let full = self.held > self.target || self.live.len() > 3000;
        let free = full || self.numbers.below(100) < 48;
        let freed = if free { self.free() } else { None };
        Some(freed.unwrap_or_else(|| self.alloc()))
    }
}
