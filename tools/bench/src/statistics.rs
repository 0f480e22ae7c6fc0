//! Medians, their intervals, and the rule by which a measurement meets its goal.

use std::fmt::{self, Display};

/// Medians decide if their interval is at most this part of the median to each side.
const NARROW: f64 = 0.05;

/// The most processor time per request, relative to the pass-through, that meets a goal if the interval is wide.
const CPU_RATIO_MAX: f64 = 1.15;

/// A median with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// The median of independent samples, and its interval between two of them, which assumes nothing about their
    /// distribution. With fewer than six samples the interval is their whole range, which covers the median less surely
    /// than 95 %.
    pub(crate) fn of(samples: &[f64]) -> Option<Estimate> {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let skipped = outside_interval(count);
        let upper = *sorted.get(count / 2)?;
        let lower = *sorted.get((count - 1) / 2)?;
        Some(Estimate {
            median: f64::midpoint(lower, upper),
            low: *sorted.get(skipped)?,
            high: *sorted.get(count - 1 - skipped)?,
        })
    }

    /// The estimate of samples that are not in a list.
    pub(crate) fn over(samples: impl IntoIterator<Item = f64>) -> Option<Estimate> {
        Estimate::of(&samples.into_iter().collect::<Vec<_>>())
    }

    /// The interval as the pages show it: `0.94 to 0.96`.
    pub(crate) fn interval(&self, digits: usize) -> String {
        format!("{:.digits$} to {:.digits$}", self.low, self.high)
    }

    fn is_narrow(&self) -> bool {
        self.high <= self.median * (1.0 + NARROW) && self.low >= self.median * (1.0 - NARROW)
    }
}

/// The median and its interval, with two digits after the point: `0.95 (0.94 to 0.96)`.
impl Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({})", self.median, self.interval(2))
    }
}

/// The median of some samples, which is no number without samples.
pub(crate) fn median(samples: impl IntoIterator<Item = f64>) -> f64 {
    Estimate::over(samples).map_or(f64::NAN, |estimate| estimate.median)
}

/// How many of the sorted samples lie below the interval, and as many above it: the most for which the median is
/// outside with a probability of at most 5 %. The number of samples below the median is distributed like the number of
/// heads in as many tosses of a coin.
fn outside_interval(count: usize) -> usize {
    let mut exactly = 0.5_f64.powi(count as i32);
    let mut at_most = exactly;
    let mut heads = 0;
    // Doubled, because the median can be outside at either end.
    while 2.0 * at_most <= 0.05 {
        heads += 1;
        exactly *= (count + 1 - heads) as f64 / heads as f64;
        at_most += exactly;
    }
    heads.saturating_sub(1)
}

/// The verdict on a number without an interval.
pub(crate) fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

/// Whether a row meets its goal, and by which criterion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) met: bool,
    pub(crate) by_cpu: bool,
}

impl Verdict {
    /// Compares a `ratio` of throughputs with `at_least`. If its interval is wider than ±5 %, the processor time per
    /// request, relative to the pass-through, decides instead. An interval that is wholly below the goal is a miss,
    /// however wide.
    pub(crate) fn of(ratio: Estimate, cpu_ratio: Option<Estimate>, at_least: f64) -> Verdict {
        match cpu_ratio {
            Some(cpu_ratio) if !ratio.is_narrow() && ratio.high >= at_least => Verdict {
                met: cpu_ratio.median <= CPU_RATIO_MAX,
                by_cpu: true,
            },
            _ => Verdict {
                met: ratio.median >= at_least,
                by_cpu: false,
            },
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match (self.met, self.by_cpu) {
            (true, false) => "met",
            (false, false) => "missed",
            (true, true) => "met (by CPU)",
            (false, true) => "missed (by CPU)",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_twenty_is_between_the_sixth_and_the_fifteenth() {
        // The textbook's ranks for 95 %: 6 and 15 of 20; 1 and 6 of 6; 10 and 21 of 30.
        assert_eq!(outside_interval(20), 5);
        assert_eq!(outside_interval(6), 0);
        assert_eq!(outside_interval(30), 9);
        let samples: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        let estimate = Estimate::of(&samples).unwrap();
        assert_eq!(
            estimate,
            Estimate {
                median: 10.5,
                low: 6.0,
                high: 15.0
            }
        );
    }

    #[test]
    fn few_samples_give_their_range_and_none_give_nothing() {
        let estimate = Estimate::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            estimate,
            Estimate {
                median: 2.0,
                low: 1.0,
                high: 3.0
            }
        );
        assert_eq!(Estimate::of(&[f64::NAN]), None);
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn the_ratio_decides_where_its_interval_is_narrow() {
        let narrow = |median| Estimate {
            median,
            low: median * 0.96,
            high: median * 1.04,
        };
        let poor_cpu = Some(narrow(1.5));
        assert_eq!(Verdict::of(narrow(0.9), poor_cpu, 0.9).text(), "met");
        assert_eq!(Verdict::of(narrow(0.89), poor_cpu, 0.9).text(), "missed");
    }

    #[test]
    fn processor_time_decides_where_the_interval_is_wide() {
        let wide = Estimate {
            median: 1.0,
            low: 0.94,
            high: 1.01,
        };
        let cpu = |median| {
            Some(Estimate {
                median,
                low: median,
                high: median,
            })
        };
        assert_eq!(Verdict::of(wide, cpu(1.16), 0.9).text(), "missed (by CPU)");
        assert_eq!(Verdict::of(wide, cpu(1.15), 1.0).text(), "met (by CPU)");
        assert_eq!(Verdict::of(wide, None, 0.9).text(), "met");
    }

    #[test]
    fn a_wide_interval_below_the_number_is_a_miss() {
        let wide = Estimate {
            median: 1.0,
            low: 0.8,
            high: 1.2,
        };
        let cpu = Some(Estimate {
            median: 0.5,
            low: 0.5,
            high: 0.5,
        });
        assert_eq!(Verdict::of(wide, cpu, 1.3).text(), "missed");
    }
}
