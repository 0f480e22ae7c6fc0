//! The order in which a job visits the slots of its region.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use fastrand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};

use crate::permutation::Permutation;

/// The default of NURand's A is at most this part of a region's slots.
const NURAND_PART: u64 = 8;

/// The default exponent of Zipf, as in YCSB.
const THETA: f64 = 0.99;

/// The order in which the slots of a region are visited.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// From the first slot to the last, again and again.
    Sequential,
    /// Every slot is equally likely.
    Uniform,
    /// TPC-C's NURand: some slots are used much more often than others.
    NuRand {
        /// NURand's A; by default the largest 2^n - 1 that is at most an eighth of the slots.
        a: Option<u64>,
    },
    /// The n-th most likely slot has a probability proportional to 1/n^theta. Which slots are
    /// likely is random.
    Zipf {
        /// The exponent, above 0.
        theta: f64,
    },
}

impl FromStr for Pattern {
    type Err = String;

    /// `sequential`, `uniform`, `nurand`, `nurand:A`, `zipf` or `zipf:THETA`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameter) = match text.split_once(':') {
            Some((name, parameter)) => (name, Some(parameter)),
            None => (text, None),
        };
        let unknown = || {
            format!(
                "'{text}' is no pattern: sequential, uniform, nurand, nurand:A, zipf and zipf:THETA \
                 are"
            )
        };
        match (name, parameter) {
            ("sequential", None) => Ok(Self::Sequential),
            ("uniform", None) => Ok(Self::Uniform),
            ("nurand", None) => Ok(Self::NuRand { a: None }),
            ("nurand", Some(a)) => {
                let a = a.parse().map_err(|_| unknown())?;
                Ok(Self::NuRand { a: Some(a) })
            }
            ("zipf", None) => Ok(Self::Zipf { theta: THETA }),
            ("zipf", Some(theta)) => {
                let theta: f64 = theta.parse().map_err(|_| unknown())?;
                if theta > 0.0 && theta <= 10.0 {
                    Ok(Self::Zipf { theta })
                } else {
                    Err(format!("zipf:{theta}: above 0 and up to 10 makes sense"))
                }
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequential => f.write_str("sequential"),
            Self::Uniform => f.write_str("uniform"),
            Self::NuRand { a: None } => f.write_str("nurand"),
            Self::NuRand { a: Some(a) } => write!(f, "nurand:{a}"),
            Self::Zipf { theta } => write!(f, "zipf:{theta}"),
        }
    }
}

/// NURand(A, x, y) of TPC-C (clause 2.1.6) with its constant C, for `random_a` drawn from 0 to A and
/// `random_xy` from `range`, x to y: ((random_a | random_xy) + C) % (y - x + 1) + x.
#[must_use]
pub fn nurand(random_a: u64, random_xy: u64, c: u64, range: RangeInclusive<u64>) -> u64 {
    let (x, y) = range.into_inner();
    let sum = u128::from(random_a | random_xy) + u128::from(c);
    (sum % (u128::from(y - x) + 1)) as u64 + x
}

/// The default of NURand's A for this number of slots.
#[must_use]
pub fn nurand_a(slots: u64) -> u64 {
    let most = slots / NURAND_PART;
    (most + 1)
        .checked_ilog2()
        .map_or(0, |power| (1 << power) - 1)
}

/// An endless sequence of a region's slots, in the order in which a job visits them. A seed determines
/// it.
#[derive(Debug)]
pub struct Addresses {
    slots: u64,
    order: Order,
}

#[derive(Debug)]
enum Order {
    Sequential {
        next: u64,
    },
    Uniform(Rng),
    NuRand {
        a: u64,
        c: u64,
        random: Rng,
    },
    Zipf {
        law: Zipf<f64>,
        places: Permutation,
        random: SmallRng,
    },
}

impl Addresses {
    /// The sequence for this number of slots, at least one.
    #[must_use]
    pub fn new(pattern: Pattern, slots: u64, seed: u64) -> Self {
        let slots = slots.max(1);
        let mut random = Rng::with_seed(seed);
        let order = match pattern {
            Pattern::Sequential => Order::Sequential { next: 0 },
            Pattern::Uniform => Order::Uniform(random),
            Pattern::NuRand { a } => {
                let a = a.unwrap_or_else(|| nurand_a(slots));
                let c = random.u64(0..=a);
                Order::NuRand { a, c, random }
            }
            Pattern::Zipf { theta } => match Zipf::new(slots as f64, theta) {
                Ok(law) => Order::Zipf {
                    law,
                    places: Permutation::new(slots, seed),
                    random: SmallRng::seed_from_u64(seed),
                },
                // The distribution exists for every theta that can be given.
                Err(_) => Order::Uniform(random),
            },
        };
        Self { slots, order }
    }

    /// The next slot.
    pub fn next_slot(&mut self) -> u64 {
        let slots = self.slots;
        match &mut self.order {
            Order::Sequential { next } => {
                let slot = *next;
                *next = (slot + 1) % slots;
                slot
            }
            Order::Uniform(random) => random.u64(0..slots),
            Order::NuRand { a, c, random } => {
                let range = 0..=slots - 1;
                let (random_a, random_xy) = (random.u64(0..=*a), random.u64(range.clone()));
                nurand(random_a, random_xy, *c, range)
            }
            Order::Zipf {
                law,
                places,
                random,
            } => {
                let rank = law.sample(random) as u64;
                places.at(rank.clamp(1, slots) - 1)
            }
        }
    }
}
