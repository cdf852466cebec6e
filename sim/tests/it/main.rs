//! Seeds that every run of the tests simulates: a few of each kind, and those that found a defect.

mod seeds;
