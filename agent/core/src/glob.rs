//! Patterns as Go's `path.Match` reads them, in which containerd's configuration names files and annotations.

/// Whether a name is of a pattern: `*` is any number of characters but `/`, `?` is one, `[a-z]` or `[^a-z]` is one of a
/// range or none of it, `\` takes what follows as it is. A pattern that is none matches nothing.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut of) = (0, 0);
    // Where the last star was, and how much of the name it takes: only that one can have to take more.
    let mut star = None;
    loop {
        if pattern.get(at) == Some(&'*') {
            star = Some((at, of));
            at += 1;
            continue;
        }
        match (one(&pattern[at..]), name.get(of)) {
            (None, None) if at == pattern.len() => return true,
            (Some((set, length)), Some(character)) if set.has(*character) => {
                (at, of) = (at + length, of + 1);
            }
            _ => {
                let Some((place, taken)) = star else { return false };
                if name.get(taken).is_none_or(|character| *character == '/') {
                    return false;
                }
                star = Some((place, taken + 1));
                (at, of) = (place + 1, taken + 1);
            }
        }
    }
}

/// Whether a text has something in it that stands for more than itself.
#[must_use]
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

/// What one character may be.
enum Set<'a> {
    Any,
    This(char),
    Ranges { pattern: &'a [char], excluded: bool },
}

impl Set<'_> {
    fn has(&self, character: char) -> bool {
        match self {
            Self::Any => character != '/',
            Self::This(this) => *this == character,
            Self::Ranges { pattern, excluded } => {
                ranges(pattern).any(|(low, high)| (low..=high).contains(&character)) != *excluded
            }
        }
    }
}

/// The set that a pattern begins with, and its length there. `None` at the end, and where it is none.
fn one(pattern: &[char]) -> Option<(Set<'_>, usize)> {
    match pattern {
        ['?', ..] => Some((Set::Any, 1)),
        ['\\', escaped, ..] => Some((Set::This(*escaped), 2)),
        ['\\'] | [] => None,
        ['[', rest @ ..] => {
            let excluded = rest.first() == Some(&'^');
            let from = usize::from(excluded);
            let length = end_of(&rest[from..])?;
            Some((Set::Ranges { pattern: &rest[from..from + length], excluded }, from + length + 2))
        }
        [plain, ..] => Some((Set::This(*plain), 1)),
    }
}

/// Where the brackets close: there is at least one range between them.
fn end_of(pattern: &[char]) -> Option<usize> {
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            ']' if at > 0 => return Some(at),
            ']' => return None,
            '\\' => at += 2,
            _ => at += 1,
        }
    }
    None
}

fn ranges(pattern: &[char]) -> impl Iterator<Item = (char, char)> {
    let mut rest = pattern;
    std::iter::from_fn(move || {
        let (low, after) = character(rest)?;
        rest = after;
        if let ['-', after @ ..] = rest {
            let (high, after) = character(after)?;
            rest = after;
            return Some((low, high));
        }
        Some((low, low))
    })
}

fn character(pattern: &[char]) -> Option<(char, &[char])> {
    match pattern {
        ['\\', escaped, rest @ ..] => Some((*escaped, rest)),
        [plain, rest @ ..] => Some((*plain, rest)),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `path/match_test.go`, and what configurations have.
    #[test]
    fn as_go_matches() {
        for (pattern, name, expected) in [
            ("abc", "abc", true),
            ("", "", true),
            ("", "a", false),
            ("*", "abc", true),
            ("*", "", true),
            ("*c", "abc", true),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "ab/c", false),
            ("a*/b", "abc/b", true),
            ("a*/b", "a/c/b", false),
            ("a*b*c*d*e*/f", "axbxcxdxe/f", true),
            ("a*b*c*d*e*/f", "axbxcxdxexxx/fff", false),
            ("a*b?c*x", "abxbbxdbxebxczzx", true),
            ("a*b?c*x", "abxbbxdbxebxczzy", false),
            ("ab[c]", "abc", true),
            ("ab[b-d]", "abc", true),
            ("ab[e-g]", "abc", false),
            ("ab[^c]", "abc", false),
            ("ab[^e-g]", "abc", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "ab", false),
            ("a?b", "a☺b", true),
            ("a???b", "a☺b", false),
            ("[a-ζ]*", "α", true),
            ("*[a-ζ]", "A", false),
            ("a?b", "a/b", false),
            ("[\\]a]", "]", true),
            ("[x\\-]", "-", true),
            ("[]a]", "]", false),
            ("[-]", "-", true),
            ("[", "a", false),
            ("[a", "a", false),
            ("a\\", "a", false),
            ("*x", "xxx", true),
            ("io.katacontainers.*", "io.katacontainers.config.hypervisor.default_vcpus", true),
            ("io.katacontainers.*", "io.katacontainers", false),
            ("*.toml", "99-nvidia.toml", true),
            ("*.toml", "99-nvidia.toml.bak", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern:?} {name:?}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let (pattern, name) = ("*a".repeat(1000), "a".repeat(10_000) + "b");
        assert!(!matches(&pattern, &name));
    }
}
