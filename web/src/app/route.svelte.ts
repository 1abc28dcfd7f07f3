// Route: the path of the page. Each part is percent-encoded separately, since names may contain any character.

export type Route =
  | { view: 'scenarios'; name: string | null }
  | { view: 'runs'; id: number | null }
  | { view: 'agents' }
  | { view: 'nowhere' }
  | { view: 'records'; names: string[] };

export function parse(path: string): Route {
  const [view = '', ...rest] = path.split('/').filter(Boolean);
  const parts = rest.flatMap((part) => {
    try {
      return [decodeURIComponent(part)];
    } catch {
      return [];
    }
  });
  if (view === 'runs' && parts.length === 0) return { view, id: null };
  if (view === 'runs' && parts.length === 1 && /^\d+$/.test(parts[0]!)) return { view, id: Number(parts[0]) };
  if (view === 'agents' && parts.length === 0) return { view };
  if (view === 'records') return { view, names: parts };
  if (['', 'scenarios'].includes(view)) return { view: 'scenarios', name: parts[0] ?? null };
  return { view: 'nowhere' };
}

export function address(route: Route): string {
  const parts = route.view === 'scenarios' ? [route.name] : route.view === 'runs' ? [route.id] : route.view === 'records' ? route.names : [];
  return `/${[route.view, ...parts.filter((p) => p !== null).map((p) => encodeURIComponent(p))].join('/')}`;
}

class Place {
  route = $state.raw<Route>(parse(location.pathname));
  /** Called before the view changes; false prevents the change. */
  mayLeave = () => true;

  constructor() {
    window.addEventListener('popstate', () => (this.route = parse(location.pathname)));
  }

  go(route: Route): void {
    if (!this.mayLeave()) return;
    history.pushState(null, '', address(route));
    this.route = route;
    scrollTo(0, 0);
  }
}

export const place = new Place();

/** Handler of links. Clicks with modifier keys keep the browser's behavior. */
export function follow(event: MouseEvent, route: Route): void {
  if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  place.go(route);
}
