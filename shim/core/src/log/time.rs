//! Nanoseconds since the epoch as the two forms of UTC time that logs use. Years are 1677 to 2262: every `i64`.

const NANOS_PER_SECOND: i64 = 1_000_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// Bytes of a [`stamp`].
pub const STAMP_LEN: usize = 30;

/// A moment as `2026-11-21T01:02:03.123456789Z`: RFC 3339 with all nine digits, so that lines align.
pub fn stamp(unix_ns: i64) -> [u8; STAMP_LEN] {
    let mut out = *b"0000-00-00T00:00:00.000000000Z";
    let Civil { year, month, day, hour, minute, second } = civil(unix_ns.div_euclid(NANOS_PER_SECOND));
    digits(&mut out[0..4], year);
    digits(&mut out[5..7], month);
    digits(&mut out[8..10], day);
    digits(&mut out[11..13], hour);
    digits(&mut out[14..16], minute);
    digits(&mut out[17..19], second);
    digits(&mut out[20..29], unix_ns.rem_euclid(NANOS_PER_SECOND));
    out
}

/// A second as `20261121-010203`, which the kubelet appends to the name of a rotated log.
pub(super) fn suffix(unix_s: i64) -> String {
    let Civil { year, month, day, hour, minute, second } = civil(unix_s);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// The second that a [`suffix`] names, if it is one.
pub(super) fn parse_suffix(text: &str) -> Option<i64> {
    let (date, clock) = text.split_once('-')?;
    let field = |text: &str, from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    if date.len() != 8 || clock.len() != 6 {
        return None;
    }
    let days = days_from_civil(field(date, 0, 4)?, field(date, 4, 6)?, field(date, 6, 8)?);
    let unix_s =
        days * SECONDS_PER_DAY + field(clock, 0, 2)? * 3600 + field(clock, 2, 4)? * 60 + field(clock, 4, 6)?;
    // What does not read back as it was written is no date.
    (suffix(unix_s) == text).then_some(unix_s)
}

struct Civil {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// The proleptic Gregorian calendar, counted in eras of 400 years that begin on 1 March, so that the leap day is the
/// last of its year.
fn civil(unix_s: i64) -> Civil {
    let of_day = unix_s.rem_euclid(SECONDS_PER_DAY);
    let days = unix_s.div_euclid(SECONDS_PER_DAY) + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    Civil {
        year: era * 400 + year_of_era + i64::from(month <= 2),
        month,
        day: of_year - (153 * from_march + 2) / 5 + 1,
        hour: of_day / 3600,
        minute: of_day / 60 % 60,
        second: of_day % 60,
    }
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

fn digits(out: &mut [u8], mut number: i64) {
    for place in out.iter_mut().rev() {
        *place = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
    }
}
