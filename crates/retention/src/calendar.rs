//! Periods of the Gregorian calendar in UTC, as numbers that are equal for moments in the same period.

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// The first day of the epoch was a Thursday.
const SINCE_MONDAY: u64 = 3;

/// Days from 1 March of the year 0 to the epoch.
const DAYS_BEFORE_EPOCH: u64 = 719_468;

/// Days of 400 years, after which the calendar repeats.
const DAYS_OF_ERA: u64 = 146_097;

/// The hour of a moment.
pub(crate) fn hour(unix_seconds: u64) -> u64 {
    unix_seconds / HOUR
}

/// The day of a moment.
pub(crate) fn day(unix_seconds: u64) -> u64 {
    unix_seconds / DAY
}

/// The week of a moment, which begins on a Monday.
pub(crate) fn week(unix_seconds: u64) -> u64 {
    (day(unix_seconds) + SINCE_MONDAY) / 7
}

/// The month of a moment, counted from the year 0.
pub(crate) fn month(unix_seconds: u64) -> u64 {
    // Years that begin in March have their leap day at the end, so the months before it have the same days each year.
    let days = day(unix_seconds) + DAYS_BEFORE_EPOCH;
    let (era, day_of_era) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    (era * 400 + year_of_era) * 12 + months_since_march + 2
}

/// The year of a moment.
pub(crate) fn year(unix_seconds: u64) -> u64 {
    month(unix_seconds) / 12
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn is_leap(year: u64) -> bool {
        (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
    }

    fn days_of_month(year: u64, month: u64) -> u64 {
        match month {
            2 => 28 + u64::from(is_leap(year)),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// The seconds since the epoch of a time such as `2026-11-25 10:00:00`.
    pub(crate) fn at(time: &str) -> u64 {
        let numbers = time
            .split([' ', '-', ':'])
            .map(|number| number.parse().unwrap());
        let numbers: Vec<u64> = numbers.collect();
        let [year, month, day, hour, minute, second] = numbers[..] else {
            panic!("{time} is no time");
        };
        let years: u64 = (1970..year)
            .map(|year| 365 + u64::from(is_leap(year)))
            .sum();
        let months: u64 = (1..month).map(|month| days_of_month(year, month)).sum();
        (years + months + day - 1) * DAY + hour * HOUR + minute * 60 + second
    }

    /// Counts through 800 years day by day.
    #[test]
    fn months_and_years_are_those_of_the_calendar() {
        let mut day = 0;
        for year_number in 1970..2770 {
            for month_number in 1..=12 {
                for _ in 0..days_of_month(year_number, month_number) {
                    for second in [day * DAY, day * DAY + DAY - 1] {
                        assert_eq!(year(second), year_number, "day {day}");
                        assert_eq!(
                            month(second),
                            year_number * 12 + month_number - 1,
                            "day {day}"
                        );
                    }
                    day += 1;
                }
            }
        }
    }

    #[test]
    fn weeks_begin_on_mondays() {
        let sunday = week(at("2026-11-22 23:59:59"));
        assert_eq!(week(at("2026-11-16 00:00:00")), sunday);
        assert_eq!(week(at("2026-11-23 00:00:00")), sunday + 1);
    }

    #[test]
    fn any_moment_has_a_period() {
        for second in [0, u64::MAX] {
            assert!(
                month(second) / 12 == year(second) && week(second) <= day(second) + SINCE_MONDAY
            );
        }
    }
}
