import { describe, expect, test } from 'vitest';
import { pause } from '../../src/app/updates';

describe('polling interval', () => {
  test('at most ten requests per second, however fast the responses', () => {
    expect([0, 1, 40, 99].map((took) => took + pause(0, took))).toEqual([100, 100, 100, 100]);
    expect(pause(0, 700)).toBe(0);
  });

  test('back-off without responses', () => {
    expect([1, 2, 3, 4, 5, 50].map((unanswered) => pause(unanswered, 3))).toEqual([400, 800, 1600, 3200, 5000, 5000]);
  });
});
