//! Inputs made of others.

use crate::corpus::Corpus;
use crate::random::Random;

/// Most bytes of a mutated input.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// Most mutations of one input.
const MUTATIONS_MAX: usize = 6;
/// Numbers at which readers of lengths, ids and counts change their minds.
const EDGES: [u32; 12] =
    [0, 1, 2, 9, 10, 127, 128, 0x40_0000, 0x40_0001, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// An input near one of the corpus.
pub fn mutate(random: &mut Random, corpus: &Corpus) -> Vec<u8> {
    let mut input = corpus.pick(random).to_vec();
    for _mutation in 0..=random.below(MUTATIONS_MAX) {
        change(random, corpus, &mut input);
        input.truncate(INPUT_BYTES_MAX);
    }
    input
}

fn change(random: &mut Random, corpus: &Corpus, input: &mut Vec<u8>) {
    let at = random.below(input.len() + 1);
    let end = (at + random.below(40)).min(input.len());
    match random.below(9) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = random.byte();
            }
        }
        2 => {
            input.drain(at..end);
        }
        3 => {
            let again = input[at..end].to_vec();
            let to = random.below(input.len() + 1);
            input.splice(to..to, again);
        }
        4 => {
            let noise: Vec<u8> = (0..random.below(20)).map(|_| random.byte()).collect();
            input.splice(at..at, noise);
        }
        5 => {
            let edge = random.pick(&EDGES).to_be_bytes();
            input.splice(at..(at + edge.len()).min(input.len()), edge);
        }
        6 => input.truncate(at),
        7 => {
            let other = corpus.pick(random);
            let from = random.below(other.len() + 1);
            input.splice(at..end, other[from..].iter().copied());
        }
        _ => input.extend_from_slice(corpus.pick(random)),
    }
}

/// An input in pieces, as reads may bring it.
pub fn cuts<'i>(random: &mut Random, input: &'i [u8]) -> Vec<&'i [u8]> {
    let mut pieces = Vec::new();
    let mut rest = input;
    // Whole, byte by byte, or anything between.
    let most = *random.pick(&[input.len(), 1, 7, 64, 4096]);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((1 + random.below(most)).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_input_and_others_make_others() {
        let corpus = Corpus::load("log");
        let input = |seed| mutate(&mut Random::new(seed), &corpus);
        assert_eq!(input(7), input(7));
        let different = (0..100).map(input).collect::<std::collections::BTreeSet<_>>();
        assert!(different.len() > 90, "{} of 100 inputs differ", different.len());
    }

    #[test]
    fn cuts_leave_nothing_out() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let input: Vec<u8> = (0..random.below(300)).map(|_| random.byte()).collect();
            assert_eq!(cuts(&mut random, &input).concat(), input);
        }
    }
}
