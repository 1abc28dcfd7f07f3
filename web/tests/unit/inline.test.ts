import { expect, test } from 'vitest';
import { inlineScript } from '../../build/files';

test('a script inside a page neither ends nor comments out its element', () => {
  const code = 'const a="</script><SCRIPT>",b=`<!--<!---->`,c=/<\\/script/;';
  const safe = inlineScript(code);
  expect(safe).not.toMatch(/<\/?script|<!--/i);
  const run = (text: string) => (0, eval)(`(()=>{${text};return [a,b,c.source]})()`) as unknown[];
  expect(run(safe).slice(0, 2)).toEqual(run(code).slice(0, 2));
});
