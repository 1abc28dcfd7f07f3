import { describe, expect, test } from 'vitest';
import { pause } from '../../src/app/news';

describe('how often a page asks', () => {
  test('ten times a second at most, however quick the answers', () => {
    expect([0, 1, 40, 99].map((took) => took + pause(0, took))).toEqual([100, 100, 100, 100]);
    expect(pause(0, 700)).toBe(0);
  });

  test('less and less often while nobody answers', () => {
    expect([1, 2, 3, 4, 5, 50].map((unanswered) => pause(unanswered, 3))).toEqual([400, 800, 1600, 3200, 5000, 5000]);
  });
});
