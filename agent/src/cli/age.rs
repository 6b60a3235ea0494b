//! Lengths of time as kubectl shows them. Source: `k8s.io/apimachinery/pkg/util/duration` `HumanDuration`.

use jiff::Timestamp;

/// From `then` to `now`: `5s`, `3m20s`, `4h5m`, `2d3h`, `1y20d`; empty for nothing.
pub(super) fn since(now: Timestamp, then: Option<Timestamp>) -> String {
    then.map_or_else(
        || "<unknown>".to_owned(),
        |then| human(now.as_second().saturating_sub(then.as_second())),
    )
}

fn human(seconds: i64) -> String {
    // Clocks of a node may differ a little; more than that is not shown as an age.
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: i64, one: char, small: i64, other: char| {
        if small == 0 { format!("{large}{one}") } else { format!("{large}{one}{small}{other}") }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, 'm', seconds % 60, 's')
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        two(days, 'd', hours % 24, 'h')
    } else if years < 2 {
        format!("{days}d")
    } else if years < 8 {
        two(years, 'y', days % 365, 'd')
    } else {
        format!("{years}y")
    }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn lengths_of_time_are_shown_as_by_kubectl() {
        const DAY: i64 = 86_400;
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (8 * 3600, "8h"),
            (47 * 3600, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 3 * 3600, "2d3h"),
            (8 * DAY, "8d"),
            (729 * DAY, "729d"),
            (730 * DAY, "2y"),
            (750 * DAY, "2y20d"),
            (9 * 365 * DAY, "9y"),
        ] {
            assert_eq!(human(seconds), text, "{seconds}");
        }
    }
}
