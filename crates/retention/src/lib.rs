//! Retention: which backups or snapshots of a series are kept, by the calendar.
//!
//! May use: nothing. Must not: know repositories, pools or command lines.
//!
//! Each rule keeps the newest item of each of the last N periods that have one. Periods are those of the Gregorian
//! calendar in UTC; weeks begin on Mondays.

mod calendar;

use std::collections::HashSet;

/// An item of a series: a backup or a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    /// The moment of the item's content, in seconds since the Unix epoch.
    pub unix_seconds: u64,
    /// The item's tags.
    pub tags: &'a [String],
    /// Whether the item is kept whatever the rules say.
    pub is_protected: bool,
}

/// Retention rules. Protected items are always kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Keep the last N items.
    pub last: Option<u32>,
    /// Keep the last item of each of the last N hours that have one.
    pub hourly: Option<u32>,
    /// Keep the last item of each of the last N days that have one.
    pub daily: Option<u32>,
    /// Keep the last item of each of the last N weeks that have one.
    pub weekly: Option<u32>,
    /// Keep the last item of each of the last N months that have one.
    pub monthly: Option<u32>,
    /// Keep the last item of each of the last N years that have one.
    pub yearly: Option<u32>,
    /// Keep all items with one of these tags.
    pub tags: Vec<String>,
}

/// A rule that keeps an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", serde(rename_all = "lowercase"))]
#[cfg_attr(feature = "openapi", schema(as = RetentionReason))]
pub enum Reason {
    /// The item is among the last N.
    Last,
    /// The item is the last one of its hour.
    Hourly,
    /// The item is the last one of its day.
    Daily,
    /// The item is the last one of its week.
    Weekly,
    /// The item is the last one of its month.
    Monthly,
    /// The item is the last one of its year.
    Yearly,
    /// The item has a tag that is kept.
    Tag,
    /// The item is protected.
    Protected,
}

impl Reason {
    /// The word for the reason.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
            Self::Yearly => "yearly",
            Self::Tag => "tag",
            Self::Protected => "protected",
        }
    }
}

/// Returns the number of the period in which a moment is.
type PeriodOf = fn(u64) -> u64;

impl Rules {
    /// Whether there is no rule, so that only protection keeps anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_absent = |(_, count, _): &(Reason, Option<u32>, PeriodOf)| count.is_none();
        self.last.is_none() && self.tags.is_empty() && self.periods().iter().all(is_absent)
    }

    /// The rules that keep each item of a series in the order of its making; empty for items that no rule keeps.
    ///
    /// The order counts and not the moment, so that setting the clock back does not reorder items.
    #[must_use]
    pub fn reasons(&self, items: &[Item<'_>]) -> Vec<Vec<Reason>> {
        let mut reasons = vec![Vec::new(); items.len()];
        let last = self.last.unwrap_or(0) as usize;
        for reasons in reasons.iter_mut().rev().take(last) {
            reasons.push(Reason::Last);
        }
        for (reason, count, period) in self.periods() {
            let count = count.unwrap_or(0) as usize;
            let mut seen = HashSet::new();
            for (item, reasons) in items.iter().zip(&mut reasons).rev() {
                if seen.len() < count && seen.insert(period(item.unix_seconds)) {
                    reasons.push(reason);
                }
            }
        }
        for (item, reasons) in items.iter().zip(&mut reasons) {
            if item.tags.iter().any(|tag| self.tags.contains(tag)) {
                reasons.push(Reason::Tag);
            }
            if item.is_protected {
                reasons.push(Reason::Protected);
            }
        }
        reasons
    }

    /// The rules with periods: their reasons, the number of periods, and the period of a moment.
    fn periods(&self) -> [(Reason, Option<u32>, PeriodOf); 5] {
        [
            (Reason::Hourly, self.hourly, calendar::hour),
            (Reason::Daily, self.daily, calendar::day),
            (Reason::Weekly, self.weekly, calendar::week),
            (Reason::Monthly, self.monthly, calendar::month),
            (Reason::Yearly, self.yearly, calendar::year),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use calendar::tests::at;

    /// Creates an item at each of these times.
    fn items<'a>(times: &[&str]) -> Vec<Item<'a>> {
        let items = times.iter().map(|time| Item {
            unix_seconds: at(time),
            tags: &[],
            is_protected: false,
        });
        items.collect()
    }

    /// The numbers of the items that are kept, from 1, and why.
    fn kept(rules: &Rules, items: &[Item<'_>]) -> Vec<(u64, String)> {
        let kept = (1..).zip(rules.reasons(items));
        let kept = kept.filter(|(_, reasons)| !reasons.is_empty());
        kept.map(|(number, reasons)| {
            let words: Vec<_> = reasons.into_iter().map(Reason::word).collect();
            (number, words.join(" "))
        })
        .collect()
    }

    fn expected(kept: &[(u64, &str)]) -> Vec<(u64, String)> {
        kept.iter()
            .map(|(number, why)| (*number, (*why).to_owned()))
            .collect()
    }

    #[test]
    fn each_rule_keeps_the_newest_of_its_periods() {
        let items = items(&[
            "2025-12-31 23:59:59",
            "2026-01-01 00:00:00",
            "2026-11-20 10:00:00",
            "2026-11-22 23:00:00", // A Sunday.
            "2026-11-23 00:00:00", // A Monday.
            "2026-11-23 10:05:00",
            "2026-11-23 10:55:00",
        ]);
        let rules = |change: fn(&mut Rules)| {
            let mut rules = Rules::default();
            change(&mut rules);
            rules
        };
        assert_eq!(kept(&rules(|_| ()), &items), []);
        let last = rules(|rules| rules.last = Some(2));
        assert_eq!(kept(&last, &items), expected(&[(6, "last"), (7, "last")]));
        let hourly = rules(|rules| rules.hourly = Some(3));
        let found = expected(&[(4, "hourly"), (5, "hourly"), (7, "hourly")]);
        assert_eq!(kept(&hourly, &items), found);
        let daily = rules(|rules| rules.daily = Some(3));
        let found = expected(&[(3, "daily"), (4, "daily"), (7, "daily")]);
        assert_eq!(kept(&daily, &items), found);
        let weekly = rules(|rules| rules.weekly = Some(2));
        assert_eq!(
            kept(&weekly, &items),
            expected(&[(4, "weekly"), (7, "weekly")])
        );
        let monthly = rules(|rules| rules.monthly = Some(9));
        let found = expected(&[(1, "monthly"), (2, "monthly"), (7, "monthly")]);
        assert_eq!(kept(&monthly, &items), found);
        let yearly = rules(|rules| rules.yearly = Some(9));
        assert_eq!(
            kept(&yearly, &items),
            expected(&[(1, "yearly"), (7, "yearly")])
        );
        let both = rules(|rules| (rules.last, rules.yearly) = (Some(1), Some(1)));
        assert_eq!(kept(&both, &items), expected(&[(7, "last yearly")]));
    }

    #[test]
    fn a_clock_that_was_set_back_loses_no_new_item() {
        let items = items(&[
            "2026-11-25 10:00:00",
            "2026-11-20 10:00:00",
            "2026-11-25 11:00:00",
        ]);
        let rules = Rules {
            daily: Some(2),
            ..Rules::default()
        };
        assert_eq!(
            kept(&rules, &items),
            expected(&[(2, "daily"), (3, "daily")])
        );
    }

    #[test]
    fn tags_and_protection_keep() {
        let tags = ["release".to_owned()];
        let mut items = items(&["2026-11-25 10:00:00"; 3]);
        items[0].tags = &tags;
        items[1].is_protected = true;
        let rules = Rules {
            tags: tags.to_vec(),
            ..Rules::default()
        };
        assert!(!rules.is_empty() && Rules::default().is_empty());
        assert_eq!(
            kept(&rules, &items),
            expected(&[(1, "tag"), (2, "protected")])
        );
    }
}
